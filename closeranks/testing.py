"""Tests on real ranks: a plugin for pytest, beside ``pytest-mpi``.

Every rank of a launch runs the same tests at the same time::

    mpirun -n 4 python -m pytest --with-mpi -p closeranks.testing

``pytest-mpi`` brings the option ``--with-mpi`` and the markers ``mpi`` and
``mpi_skip``. This plugin adds what a test on several ranks needs to end:

* After each phase of a test the ranks compare outcomes. A failure on one rank
  is a failure on all ranks, with the traceback of the rank that failed.
* A rank that hangs ends the launch, with a traceback of every rank.
* The fixture `comm` gives a communicator of 1, 2, 3, 4 and of all ranks in
  turn, so that one launch tests several numbers of ranks.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from closeranks.errors import Unavailable

_REMEDY: Final = "pip install 'closeranks[test]'"

try:
    import pytest
except ImportError as cause:
    raise Unavailable("pytest", _REMEDY) from cause

if TYPE_CHECKING:
    from mpi4py import MPI

_RANK: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_RANKS: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
#: Seconds in which all ranks write their tracebacks, one rank after the other.
_WRITING_S: Final = 2.0
#: Seconds by which one rank may collect its tests later than another, at least.
_COLLECTING_S: Final = 60.0

_WORLD = pytest.StashKey["MPI.Intracomm"]()
_STDERR = pytest.StashKey[int]()


def _number(names: tuple[str, ...], default: int) -> int:
    """Read what the launcher says of this process, before MPI is started."""
    said = [os.environ[name] for name in names if os.environ.get(name, "").isdigit()]
    return int(said[0]) if said else default


_SIZES: Final = sorted({1, 2, 3, 4, _number(_RANKS, 1)})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option; refuse to start where ``pytest-mpi`` is not installed."""
    if find_spec("pytest_mpi") is None:
        raise pytest.UsageError(f"closeranks.testing needs pytest-mpi: {_REMEDY}")
    parser.addoption(
        "--mpi-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --with-mpi: what set-up, call or tear-down of a test may take (default: 60)",
    )


def _is_on(config: pytest.Config) -> bool:
    """Tell whether the tests run on the ranks of a launch."""
    chosen = (config.getoption(name, False) for name in ("--with-mpi", "--only-mpi"))
    return any(chosen)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr for tracebacks; let rank 0 alone report."""
    if not _is_on(config):
        return
    _own_temporary_folders()
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        config.stash[_STDERR] = os.dup(2)
    else:
        with capture.global_and_fixture_disabled():
            config.stash[_STDERR] = os.dup(2)
    if _number(_RANK, 0) != 0:
        config.pluginmanager.unregister(name="terminalreporter")


def _own_temporary_folders() -> None:
    """Give this rank a root of its own for ``tmp_path``.

    At its end ``pytest`` removes the folders of earlier runs. Ranks that do so
    at the same time would end a launch that has passed with an error.
    """
    given = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    own = Path(given) / f"pytest-{os.getuid()}-rank-{_number(_RANK, 0)}"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the ranks, the library and the Python of a launch."""
    if not _is_on(config):
        return None
    from mpi4py import MPI

    library = MPI.Get_library_version().splitlines()[0].strip("\x00")
    return f"mpi: {MPI.COMM_WORLD.size} ranks, {library}, python {sys.version.split()[0]}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that are in a folder named ``mpi`` and carry no marker.

    ``pytest-mpi`` looks for its marker among the names of folders, too, and
    skips such a test where ``--with-mpi`` is not given.
    """
    for item in items:
        if item.get_closest_marker("mpi") is None:
            item.own_markers[:] = [
                mark
                for mark in item.own_markers
                if mark.kwargs.get("reason") != "need --with-mpi option to run"
            ]


def pytest_runtestloop(session: pytest.Session) -> None:
    """Let the ranks begin together: some collect their tests later than others."""
    config = session.config
    if _is_on(config) and not config.option.collectonly:
        _watch(config, max(_COLLECTING_S, config.getoption("--mpi-timeout")))
        _compare(config, f"{len(session.items)} tests, {session.testsfailed} errors", None)
        faulthandler.cancel_dump_traceback_later()


def _world(config: pytest.Config) -> MPI.Intracomm:
    """Give a duplicate of the world for messages of this plugin, made at first use."""
    if _WORLD not in config.stash:
        from mpi4py import MPI

        config.stash[_WORLD] = MPI.COMM_WORLD.Dup()
    return config.stash[_WORLD]


def _compare(
    config: pytest.Config, where: str, outcome: tuple[str, str] | None
) -> dict[int, tuple[str, str]]:
    """Give the outcomes of all ranks; end where two are in different tests."""
    world = _world(config)
    heard = world.allgather((where, outcome))
    if len({place for place, _ in heard}) > 1:
        places = "\n".join(f"rank {rank}: {place}" for rank, (place, _) in enumerate(heard))
        os.write(config.stash[_STDERR], f"ranks run different tests:\n{places}\n".encode())
        world.Abort(1)
    return {rank: said for rank, (_, said) in enumerate(heard) if said is not None}


def _agree(item: pytest.Item, phase: str, error: BaseException | None) -> None:
    """Compare the outcome of a phase over all ranks; fail if one rank failed.

    A skip in the set-up is a skip of all ranks: the others would call the test
    without the rank that skips.
    """
    outcome = None
    if isinstance(error, pytest.skip.Exception):
        outcome = ("skipped", str(error)) if phase == "setup" else None
    elif error is not None:
        outcome = ("failed", "".join(traceback.format_exception(error)))
        text = f"\n{item.nodeid}, {phase}:\n{outcome[1]}"
        os.write(item.config.stash[_STDERR], text.encode())
    outcomes = _compare(item.config, f"{item.nodeid}, {phase}", outcome)
    failed = {rank: text for rank, (kind, text) in outcomes.items() if kind == "failed"}
    if failed and (outcome is None or outcome[0] != "failed"):
        rank, text = next(iter(failed.items()))
        pytest.fail(f"failed on ranks {sorted(failed)}\nrank {rank}: {text}", pytrace=False)
    if outcomes and outcome is None:
        pytest.skip(f"skipped on ranks {sorted(outcomes)}: {next(iter(outcomes.values()))[1]}")


def _watch(config: pytest.Config, limit_s: float) -> None:
    """Write a traceback of this rank in `limit_s`; rank 0 does it last, and ends.

    The launcher ends all ranks when the first one ends. So each rank must have
    written by then. No thread of Python does this: a rank may hang with the
    lock of the interpreter held.
    """
    world = _world(config)
    later_s = _WRITING_S * (world.size - 1 - world.rank) / max(1, world.size - 1)
    faulthandler.dump_traceback_later(
        limit_s + (later_s if world.rank else _WRITING_S + 0.5),
        exit=world.rank == 0,
        file=config.stash[_STDERR],
    )


def _phase(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    """Run one phase in its time, then agree on how it ended."""
    if not _is_on(item.config):
        return (yield)
    mark = item.get_closest_marker("timeout")
    limit_s = float(mark.args[0] if mark and mark.args else item.config.getoption("--mpi-timeout"))
    _watch(item.config, limit_s)
    try:
        result = yield
    except BaseException as error:
        _agree(item, phase, error)
        raise
    else:
        _agree(item, phase, None)
        return result
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Agree on the set-up."""
    return (yield from _phase(item, "setup"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Agree on the test."""
    return (yield from _phase(item, "call"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Agree on the tear-down."""
    return (yield from _phase(item, "teardown"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Skip the test on ranks that its communicator leaves out."""
    if pyfuncitem.funcargs.get("comm", "unused") is None:
        pytest.skip("left out: a test on fewer ranks")


@pytest.fixture(params=_SIZES, ids=lambda size: f"{size}ranks")
def comm(request: pytest.FixtureRequest) -> Iterator[MPI.Intracomm | None]:
    """Give a communicator of the first 1, 2, 3, 4 or all ranks; None on the others.

    A test is not called on the ranks left out. Sizes below the ``min_size`` of
    the test's marker ``mpi`` are skipped.

    Parameters
    ----------
    request : pytest.FixtureRequest
        Has the number of ranks.

    Yields
    ------
    mpi4py.MPI.Intracomm or None
        Freed after the test.
    """
    from mpi4py import MPI

    world, size = _world(request.config), request.param
    mark = request.node.get_closest_marker("mpi")
    least: int = (mark.kwargs.get("min_size") if mark else None) or 1
    if world.size < size:
        name = Path(sys.executable).name
        pytest.skip(f"needs {size} ranks, has {world.size}: mpirun -n {size} {name} -m pytest ...")
    if size < least:
        pytest.skip(f"needs {least} ranks, and this communicator has {size}")
    part = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
    if not isinstance(part, MPI.Intracomm) or part == MPI.COMM_NULL:
        yield None
        return
    yield part
    part.Free()
