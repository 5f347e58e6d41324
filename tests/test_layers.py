"""Who may import whom: read from the source, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("comms", "collectives", "partitioning", "checkpoint", "jobs")

# A library that is slow to import, or starts something, is met in few places.
GATES = {
    "cupy": ("closeranks.comms.", "closeranks.jobs.demo", "closeranks.jobs.doctor"),
    "pynvml": ("closeranks.comms.", "closeranks.jobs."),
    "h5py": ("closeranks.checkpoint.", "closeranks.jobs.doctor"),
    "matplotlib": ("closeranks.comms.topology.drawing", "closeranks.jobs."),
    "sklearn": ("closeranks.jobs.",),
    "click": ("closeranks.__main__", "closeranks.jobs."),
    "rich": ("closeranks.__main__", "closeranks.jobs."),
}

# Modules that talk MPI; all others decide without it and are tested in one process.
TALKERS = {
    "comms": {
        "buffers.array_memory", "buffers.buffer_spec", "buffers.datatype", "buffers.packing",
        "discovery.discovery", "gpu.cuda_aware", "liveness.agreement",
        "liveness.recovery_allgather", "liveness.uncaught_error", "mpi.deferred_free",
        "mpi.mpi_handle", "mpi.mpi_lock", "mpi.node_peers", "mpi.ulfm",
        "topology.level_communicators",
    },
    "collectives": {
        "arguments.argument_readers", "arguments.native_handover", "arguments.reduction_arguments",
        "communicator.blocking", "communicator.closing", "communicator.communicator",
        "communicator.derived_communicators", "communicator.gradient_buckets",
        "communicator.initialization", "communicator.object_calls", "communicator.persistent_calls",
        "communicator.recoverable", "dispatch.argument_check", "dispatch.device_collectives",
        "dispatch.dispatch", "dispatch.object_refusal", "dispatch.persistent_creation",
        "dispatch.persistent_operation", "dispatch.persistent_starts", "dispatch.plan_cache",
        "dispatch.request", "engine.bound_plan", "engine.deferred_blocks", "engine.epoch_world",
        "engine.error_translation", "engine.execution", "engine.execution_arrays",
        "engine.late_ranks", "engine.leaves", "engine.loop_mpi_functions", "engine.mpi_handles",
        "engine.progress_engine", "engine.tracked_communicators", "fastpath.shortcut",
        "fastpath.shortcut_layout", "fastpath.shortcut_proof", "faults.attempts",
        "faults.final_meeting", "faults.recovery", "faults.respawn", "faults.spares",
        "faults.survivor_creation", "plans.message_tags", "reduction.op", "selection.planner",
        "selection.tuning_origin", "shm.shared_arrays",
    },
    "checkpoint": {
        "control.control_channel",
    },
    "jobs": {
        "bench.benches.checkpoint", "bench.benches.collective", "bench.benches.faults",
        "bench.benches.init_program", "bench.benches.pack", "bench.benches.plan_steps",
        "bench.benches.point_to_point",
        "bench.measuring.collectives", "bench.measuring.session", "bench.measuring.timing", "demo",
        "launch.program", "topology_command", "tune.command", "tune.survey",
    },
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (ROOT / "comms").is_dir(), reason="not a checkout: the rooms are not at the root"
)


def _files() -> dict[str, Path]:
    """Map every module of the package to its file, by its import name."""
    found = {f"closeranks.{p.stem}": p for p in (ROOT / "closeranks").glob("*.py")}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            found["closeranks." + ".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


MODULES = _files()


def _runtime(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree, leaving out what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _runtime(other)
            continue
        yield child
        yield from _runtime(child)


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and full module name of every import of a file."""
    for node in _runtime(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield node.lineno, full if full in MODULES else source


def _floor(module: str) -> int:
    """Height of a module in the house: errors 0, rooms 1 to 5, the door 6.

    The public names are the top of what jobs, like any user, builds upon.
    """
    parts = module.split(".")
    if module == "closeranks":
        return 1 + ROOMS.index("jobs")
    if module == "closeranks.errors":
        return 0
    return 1 + ROOMS.index(parts[1]) if parts[1:2] and parts[1] in ROOMS else 1 + len(ROOMS)


def _violations() -> Iterator[str]:
    for module, path in MODULES.items():
        if module == "closeranks":
            continue
        for line, target in _imports(path):
            here = f"{path.relative_to(ROOT)}:{line}"
            first = target.split(".")[0]
            if target.startswith("."):
                yield f"{here}: relative import"
            elif first in ROOMS:
                yield f"{here}: bare {first}, write closeranks.{target}"
            elif first == "closeranks" and _floor(target) > _floor(module):
                yield f"{here}: looks up into {target}"


def test_the_rooms_are_seen() -> None:
    assert {f"closeranks.{room}" for room in ROOMS} <= MODULES.keys()
    assert len(MODULES) > 10


def test_imports_point_one_way() -> None:
    assert list(_violations()) == []


def test_slow_libraries_are_imported_where_they_belong() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {target}"
        for module, path in MODULES.items()
        for line, target in _imports(path)
        for library, allowed in GATES.items()
        if target.split(".")[0] == library and not module.startswith(allowed)
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_only_named_modules_talk_mpi(room: str) -> None:
    start = f"closeranks.{room}."
    talkers = {
        module.removeprefix(start)
        for module, path in MODULES.items()
        if module.startswith(start)
        and any(target.split(".")[0] == "mpi4py" for _, target in _imports(path))
    }
    assert talkers - TALKERS.get(room, set()) == set()


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_needs_itself(room: str) -> None:
    graph = {
        module: {t for _, t in _imports(path) if t.startswith(f"closeranks.{room}")} & set(MODULES)
        for module, path in MODULES.items()
        if module.startswith(f"closeranks.{room}")
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))
