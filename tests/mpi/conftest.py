"""Tests on real ranks: one launch, sub-communicators of 1, 2, 3 and 4 ranks.

Every test here runs on all ranks of the world at once.  After each phase of
each test the ranks compare outcomes, so that what fails on one rank fails on
all; a rank that never arrives ends the launch with a traceback of every rank.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

    import closeranks

HERE = Path(__file__).resolve().parent
SIZES = (1, 2, 3, 4)
LIMIT_S = 60.0
#: Of 1, 2 and 3 ranks each test has one turn by turn, or all.
SEED = os.environ.get("MPI_SEED", "all")
LAUNCHED = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"))

_WORLD = pytest.StashKey["MPI.Intracomm"]()
_STDERR = pytest.StashKey[int]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder to the launch, unless it was asked for by name."""
    asked = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    named = any(path == HERE or HERE in path.parents for path in asked)
    return None if LAUNCHED or named or HERE not in collection_path.parents else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.mpi)
    late = {item for item in ours if not _is_due(item)}
    if late:
        config.hook.pytest_deselected(items=list(late))
        items[:] = [item for item in items if item not in late]


def _is_due(item: pytest.Item) -> bool:
    """Whether a test is run: on all ranks always, on fewer by turns where there is a seed."""
    call = getattr(item, "callspec", None)
    size: int | None = None if call is None else call.params.get("comm")
    if SEED == "all" or size is None or size == SIZES[-1]:
        return True
    turn = zlib.crc32(item.nodeid.replace(f"{size}ranks", "").encode()) + int(SEED)
    return size == SIZES[turn % (len(SIZES) - 1)]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr for tracebacks; let rank 0 alone report."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[_STDERR] = os.dup(2)
    ranks = [os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")]
    if any(rank not in (None, "0") for rank in ranks):
        config.pluginmanager.unregister(name="terminalreporter")


def _world(config: pytest.Config) -> MPI.Intracomm:
    """A duplicate of the world for our own messages, made at first use."""
    if _WORLD not in config.stash:
        from mpi4py import MPI

        config.stash[_WORLD] = MPI.COMM_WORLD.Dup()
    return config.stash[_WORLD]


def _agree(item: pytest.Item, phase: str, error: BaseException | None, limit_s: float) -> None:
    """Compare the outcome of a phase over all ranks; fail if one failed.

    Who waits here for a rank that hangs ends a second after it: the first to end takes
    all along, and where the hang is must be written by then.
    """
    _watch(item, limit_s + 1)
    skipped = isinstance(error, pytest.skip.Exception)
    text = None
    if error is not None and not skipped:
        text = "".join(traceback.format_exception(error))
        os.write(item.config.stash[_STDERR], f"\n{item.nodeid}, {phase}:\n{text}".encode())
    world = _world(item.config)
    outcomes = world.allgather((f"{item.nodeid}, {phase}", text))
    if len({where for where, _ in outcomes}) > 1:
        places = "\n".join(f"rank {rank}: {where}" for rank, (where, _) in enumerate(outcomes))
        os.write(item.config.stash[_STDERR], f"ranks run different tests:\n{places}\n".encode())
        world.Abort(1)
    failed = {rank: text for rank, (_, text) in enumerate(outcomes) if text}
    if failed and text is None:
        rank, story = next(iter(failed.items()))
        pytest.fail(f"failed on ranks {sorted(failed)}\nrank {rank}: {story}", pytrace=False)


def _watch(item: pytest.Item, limit_s: float) -> None:
    """End this rank with a traceback in `limit_s`; the watch before it is over."""
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[_STDERR])


def _phase(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    """Run one phase under the watchdog, then agree on how it ended."""
    mark = item.get_closest_marker("timeout")
    limit_s = float(mark.args[0]) if mark and mark.args else LIMIT_S
    _watch(item, limit_s)
    try:
        result = yield
    except BaseException as error:
        _agree(item, phase, error, limit_s)
        raise
    else:
        _agree(item, phase, None, limit_s)
        return result
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _phase(item, "setup"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _phase(item, "call"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _phase(item, "teardown"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Skip the test on ranks that its communicator leaves out."""
    given = pyfuncitem.funcargs
    if any(given.get(name, "unused") is None for name in ("comm", "known", "world")):
        pytest.skip("left out: a test on fewer ranks")


@pytest.fixture(params=SIZES, ids=lambda size: f"{size}ranks")
def comm(request: pytest.FixtureRequest) -> Iterator[MPI.Intracomm | None]:
    """A communicator of the first 1, 2, 3 or 4 ranks; None on the others."""
    from mpi4py import MPI

    world = _world(request.config)
    size: int = request.param
    if world.size < size:
        pytest.skip(f"needs {size} ranks, has {world.size}: mpirun -n 4 python -m pytest tests/mpi")
    part = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
    if not isinstance(part, MPI.Intracomm) or part == MPI.COMM_NULL:
        yield None
        return
    yield part
    part.Free()


@pytest.fixture
def world(comm: MPI.Intracomm | None) -> Iterator[closeranks.Communicator | None]:
    """A `closeranks.Communicator` over `comm`; None on the ranks left out."""
    if comm is None:
        yield None
        return
    import closeranks

    with closeranks.init(comm) as opened:
        yield opened


def pytest_report_header() -> str | None:
    if not LAUNCHED:
        return None
    from mpi4py import MPI

    library = MPI.Get_library_version().splitlines()[0].strip("\x00")
    return f"mpi: {MPI.COMM_WORLD.size} ranks, {library}, python {sys.version.split()[0]}"


@pytest.fixture
def name(world: closeranks.Communicator | None) -> Iterator[str]:
    """A name for the checkpoints of this test alone; nothing of it is left behind."""
    import numpy as np

    from closeranks.checkpoint import checkpointer
    from closeranks.checkpoint.memory import slot_file
    from closeranks.comms.shm.shared_folder import folder

    if world is None:  # this rank is not one of the test's
        yield ""
        return
    made = f"test-{world.bcast(np.random.default_rng().integers(1 << 60), 0):x}-{world.size}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointer, "own_job", str)  # it stands alone
        yield made
    world.Barrier()
    for path in [*(path for path, _ in slot_file.found(made)), folder() / f"lock-{made}"]:
        path.unlink(missing_ok=True)
