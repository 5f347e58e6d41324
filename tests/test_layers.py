"""Which package may import which: read from the source, without running it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from closeranks.collectives.communicator.late_methods import LATE
from closeranks.jobs.bench.benches import registration

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("comms", "collectives", "partitioning", "checkpoint", "jobs")

#: The packages, lowest first: one may import from those before it, and from itself.
#: Type-only imports and imports inside of functions count, too.
ORDER = (
    "errors",
    "comms", "comms.shm", "comms.jit", "comms.exit", "comms.mpi", "comms.liveness", "comms.gpu",
    "comms.buffers", "comms.topology", "comms.discovery",
    "collectives.plans", "collectives.pairs", "collectives.builders.patterns",
    "collectives.builders", "collectives.analysis", "collectives.reduction",
    "collectives.arguments", "collectives.selection", "collectives.shm", "collectives.engine",
    "collectives.refill",
    "collectives.fastpath", "collectives.dispatch", "collectives.faults", "collectives.replicated",
    "collectives.communicator", "collectives.sparse",
    "collectives.coded.codes", "collectives.coded.schemes", "collectives.coded.stragglers",
    "collectives.coded.prediction", "collectives.coded.transport", "collectives.coded",
    "collectives",
    "partitioning.mesh", "partitioning.layout", "partitioning.placement",
    "partitioning.redistribution", "partitioning.halo", "partitioning",
    "checkpoint.erasure", "checkpoint.placement", "checkpoint.state", "checkpoint.memory",
    "checkpoint.control", "checkpoint.restore", "checkpoint.disk", "checkpoint.saving",
    "checkpoint",
    "closeranks",
    "jobs.launch", "jobs.lab", "jobs.plan", "jobs.stragglers", "jobs.checkpoint_tools",
    "jobs.bench.measuring", "jobs.bench.churn", "jobs.bench.benches", "jobs.bench", "jobs.tune",
    "jobs", "door",
)  # fmt: skip

#: The one package whose modules need each other: execution, engine, world, failure.
KNOT = "collectives.engine"

#: Modules that import others by name, when these are first asked for.
DOORS = {
    "closeranks", "closeranks.__main__", "closeranks.collectives", "closeranks.collectives.coded",
    "closeranks.collectives.sparse", "closeranks.partitioning",
    "closeranks.collectives.communicator.late_methods", "closeranks.jobs.launch.launch",
}  # fmt: skip

# A library that is slow to import, or starts something, is met in few places.
GATES = {
    "cupy": ("closeranks.comms.", "closeranks.jobs.demo", "closeranks.jobs.doctor"),
    "pynvml": ("closeranks.comms.", "closeranks.jobs."),
    "h5py": (
        "closeranks.checkpoint.disk.",
        "closeranks.collectives.coded.stragglers.",
        "closeranks.jobs.doctor",
    ),
    "matplotlib": ("closeranks.comms.topology.drawing", "closeranks.jobs."),
    "sklearn": ("closeranks.jobs.",),
    "click": ("closeranks.__main__", "closeranks.jobs."),
    "rich": ("closeranks.__main__", "closeranks.jobs."),
}

#: Modules that talk MPI; all others decide without it and are tested in one process.
TALKERS = {
    "checkpoint.control.control_channel", "collectives.arguments.argument_readers",
    "collectives.arguments.call_form", "collectives.arguments.native_handover",
    "collectives.arguments.reduction_arguments",
    "collectives.coded.transport.cell_messages", "collectives.coded.transport.coded_agreement",
    "collectives.coded.transport.gradient_exchange", "collectives.coded.transport.recorder",
    "collectives.coded.transport.round_wait",
    "collectives.communicator.adoption", "collectives.communicator.blocking",
    "collectives.communicator.children", "collectives.communicator.closing",
    "collectives.communicator.communicator", "collectives.communicator.derived_communicators",
    "collectives.communicator.gradient_buckets", "collectives.communicator.initialization",
    "collectives.communicator.membership", "collectives.communicator.nonblocking",
    "collectives.communicator.object_calls", "collectives.communicator.persistent_calls",
    "collectives.dispatch.argument_check", "collectives.dispatch.call_errors",
    "collectives.dispatch.device_collectives", "collectives.dispatch.dispatch",
    "collectives.dispatch.kernel_speed", "collectives.dispatch.known_calls",
    "collectives.dispatch.race_calls",
    "collectives.dispatch.object_refusal", "collectives.dispatch.persistent_creation",
    "collectives.dispatch.persistent_operation", "collectives.dispatch.persistent_starts",
    "collectives.dispatch.plan_cache", "collectives.dispatch.request",
    "collectives.engine.bound_plan", "collectives.engine.deferred_blocks",
    "collectives.engine.epoch_world", "collectives.engine.error_translation",
    "collectives.engine.execution", "collectives.engine.execution_arrays",
    "collectives.engine.late_ranks", "collectives.engine.leaves",
    "collectives.engine.loop_mpi_functions", "collectives.engine.progress_engine",
    "collectives.engine.tracked_communicators", "collectives.fastpath.request_wait",
    "collectives.fastpath.shortcut", "collectives.fastpath.shortcut_proof",
    "collectives.fastpath.shortcut_record",
    "collectives.faults.attempts", "collectives.faults.final_meeting",
    "collectives.faults.recovery", "collectives.faults.respawn", "collectives.faults.spares",
    "collectives.faults.survivor_creation", "collectives.plans.message_tags",
    "collectives.reduction.op", "collectives.selection.planner",
    "collectives.selection.tuning_origin", "collectives.shm.shared_arrays",
    "collectives.sparse.agreed_numbers", "collectives.sparse.chunks",
    "collectives.sparse.pair_reduction", "collectives.sparse.row_transport",
    "comms.buffers.array_memory", "comms.buffers.buffer_spec", "comms.buffers.datatype",
    "comms.buffers.pack_entries", "comms.buffers.typemap", "comms.discovery.discovery",
    "comms.gpu.cuda_aware", "comms.liveness.agreement", "comms.liveness.recovery_allgather",
    "comms.liveness.uncaught_error", "comms.mpi.deferred_free", "comms.mpi.interruption",
    "comms.mpi.mpi_handle", "comms.mpi.node_peers", "comms.mpi.ulfm",
    "comms.topology.level_communicators", "jobs.bench.benches.checkpoint",
    "jobs.bench.benches.faults", "jobs.bench.benches.init_program",
    "jobs.bench.benches.pack", "jobs.bench.benches.plan_steps", "jobs.bench.benches.point_to_point",
    "jobs.bench.benches.varied", "jobs.bench.benches.redistribute", "jobs.bench.benches.halo",
    "jobs.bench.measuring.collectives", "jobs.bench.measuring.session",
    "jobs.bench.measuring.timing", "jobs.demo", "jobs.launch.program", "jobs.topology_command",
    "jobs.tune.command", "jobs.tune.survey",
    "partitioning.halo.array_address", "partitioning.halo.ghost_messages",
    "partitioning.halo.halo", "partitioning.halo.halo_traffic",
    "partitioning.redistribution.call_agreement", "partitioning.redistribution.exchange",
    "partitioning.redistribution.message_exchange",
    "testing",
}  # fmt: skip

#: Modules that may be imported before MPI is started: none imports mpi4py, however far down.
BEFORE_MPI = (
    "closeranks", "closeranks.__main__", "closeranks.checkpoint", "closeranks.collectives",
    "closeranks.comms", "closeranks.jobs.bench.command", "closeranks.jobs.doctor",
    "closeranks.partitioning",
    "closeranks.jobs.lab.command", "closeranks.jobs.launch.run_command",
    "closeranks.jobs.plan.command", "closeranks.jobs.stragglers.command",
    "closeranks.jobs.topology_command",
    "closeranks.jobs.tune.command",
    "closeranks.jobs.checkpoint_tools.checkpoint_command",
    *(f"closeranks.jobs.bench.benches.{name}" for name in registration.MODULES),
)  # fmt: skip

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


def _package(module: str) -> str:
    """Give the package of a module, as `ORDER` names it."""
    if module == "closeranks.errors":
        return "errors"
    path = MODULES[module]
    if path.parent == ROOT / "closeranks":
        return "closeranks" if module == "closeranks" else "door"
    return ".".join(path.parent.relative_to(ROOT).parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _walk(node: ast.AST, *, typed: bool) -> Iterator[ast.AST]:
    """Walk a tree, with or without what only a type checker reads."""
    for child in ast.iter_child_nodes(node):
        if not typed and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from _walk(other, typed=typed)
            continue
        yield child
        yield from _walk(child, typed=typed)


@cache
def _imports(path: Path, *, typed: bool = True) -> list[tuple[int, str]]:
    """Give line and full module name of every import of a file."""
    return list(_found(path, typed=typed))


def _found(path: Path, *, typed: bool) -> Iterator[tuple[int, str]]:
    for node in _walk(_tree(path), typed=typed):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield node.lineno, full if full in MODULES else source


def _looks_up(module: str, target: str) -> bool:
    """Tell whether an import leads to a package above; a face shows what is in its own."""
    here, there = _package(module), _package(target)
    if MODULES[module].name == "__init__.py" and target.startswith(f"{module}."):
        return False
    return ORDER.index(there) > ORDER.index(here)


def _violations() -> Iterator[str]:
    for module, path in MODULES.items():
        for line, target in _imports(path):
            here = f"{path.relative_to(ROOT)}:{line}"
            first = target.split(".")[0]
            if target.startswith("."):
                yield f"{here}: relative import"
            elif first in ROOMS:
                yield f"{here}: bare {first}, write closeranks.{target}"
            elif first == "closeranks" and _looks_up(module, target):
                yield f"{here}: looks up into {target}"


def test_the_order_names_every_package() -> None:
    assert {_package(module) for module in MODULES} == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


def test_imports_point_one_way() -> None:
    assert list(_violations()) == []


def test_only_doors_import_by_name() -> None:
    """A table of names is the way up where calls must find what lies above them."""
    name = re.compile(r"closeranks(\.\w+)+(:\w+)?")
    found = set()
    for module, path in MODULES.items():
        tree = _tree(path)
        asks = any(
            isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)
            for node in ast.walk(tree)
        )
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        if asks and any(isinstance(one, str) and name.fullmatch(one) for one in said):
            found.add(module)
    assert found - {"closeranks.comms.jit.code_cache"} == DOORS


@pytest.mark.parametrize("method", LATE)
def test_late_methods_are_found(method: str) -> None:
    module, _, name = LATE[method].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    tree = ast.parse((ROOT / "collectives/communicator/communicator.py").read_text())
    (made,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Communicator")
    assert method in {n.name for n in made.body if isinstance(n, ast.FunctionDef)}


def test_slow_libraries_are_imported_where_they_belong() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {target}"
        for module, path in MODULES.items()
        for line, target in _imports(path, typed=False)
        for library, allowed in GATES.items()
        if target.split(".")[0] == library and not module.startswith(allowed)
    ]
    assert wrong == []


def test_only_named_modules_talk_mpi() -> None:
    talkers = {
        module.removeprefix("closeranks.")
        for module, path in MODULES.items()
        if any(t.split(".")[0] == "mpi4py" for _, t in _imports(path, typed=False))
    }
    assert talkers == TALKERS


def _executed(path: Path) -> set[str]:
    """Give what importing a file imports at once: its own statements, no function's."""
    names = set()
    pending = list(_tree(path).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in MODULES else node.module or "")
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            pending += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
    return names


@pytest.mark.parametrize("module", BEFORE_MPI)
def test_importing_does_not_start_mpi(module: str) -> None:
    seen: dict[str, str] = {}
    pending = [(module, "")]
    while pending:
        one, asker = pending.pop()
        assert one.split(".")[0] != "mpi4py", f"{asker} imports it"
        if one in seen or one not in MODULES:
            continue
        seen[one] = asker
        parents = [one.rsplit(".", n)[0] for n in range(1, one.count(".") + 1)]
        pending += [(target, one) for target in {*_executed(MODULES[one]), *parents}]


def _cycle(graph: dict[str, set[str]]) -> str | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return None


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_needs_itself(room: str) -> None:
    start = f"closeranks.{room}"
    graph = {
        module: {t for _, t in _imports(path, typed=False) if t.startswith(start)} & set(MODULES)
        for module, path in MODULES.items()
        if module.startswith(start)
    }
    assert _cycle(graph) is None


def test_parts_of_a_communicator_keep_their_state() -> None:
    """Only `Adopted.adopt` sets private attributes of another object: of what it makes."""
    folder = ROOT / "collectives/communicator"
    found = {
        f"{path.name}: {ast.unparse(node)}"
        for path in folder.glob("*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)
        if ast.unparse(node.value) not in ("self", "cls", "super()")
    }
    parts = ("_closing", "_membership", "_service")
    assert found == {f"adoption.py: made.{part}" for part in parts}
