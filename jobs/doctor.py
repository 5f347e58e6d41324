"""``closeranks doctor``: checks that everything a job needs works here.

`look_at_software` checks Python, its packages, HDF5, Numba and devices.
`look_at_machine` checks cores, memory, MPI, SLURM and the emulated cluster.  A
`Finding` is one line of the report.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from closeranks.collectives.fastpath.shortcut_versions import PROVEN, are_listed, versions
from closeranks.collectives.selection.remembered import look_at_folder
from closeranks.comms.discovery.node_hardware import cgroup_quota, usable_cores
from closeranks.comms.jit.code_cache import cache_folder
from closeranks.comms.settings import switch
from closeranks.comms.shm import shared_folder
from closeranks.errors import Error, Unavailable, UsageError
from closeranks.jobs.launch import program, slurm_srun, target
from closeranks.jobs.launch.launcher_choice import choose
from closeranks.jobs.launch.mpi_library import of_python
from closeranks.jobs.launch.run_command import has_fabric


@dataclass(frozen=True)
class Finding:
    """The finding of one check.

    Parameters
    ----------
    check : str
        Subject of the check.
    state : str
        ``"ok"``, ``"warn"`` (something optional does not work, or will be
        slow) or ``"fail"`` (something that must work does not).
    found : str
        State of the subject.
    remedy : str, optional
        A way to mend it.
    """

    check: str
    state: str
    found: str
    remedy: str = ""

    def row(self) -> dict[str, str]:
        """Give the finding as a flat object for JSON.

        Returns
        -------
        dict of str to str
            Its four fields.
        """
        return asdict(self)


def looked(
    check: str, look: Callable[[], Iterable[Finding]], *, needed: bool = True
) -> Iterator[Finding]:
    """Make a finding of what keeps a check from looking.

    Parameters
    ----------
    check : str
        Subject of the check.
    look : callable
        Gives what it finds.
    needed : bool, optional
        Whether it must work.

    Yields
    ------
    Finding
        Findings; the last says that a file or folder may not be read, if that
        is so.
    """
    try:
        yield from look()
    except OSError as wrong:
        state = "fail" if needed else "warn"
        yield Finding(check, state, f"cannot look: {wrong}", "let this user read and execute it")


_REQUIRED = (
    "numpy", "ml_dtypes", "mpi4py", "numba", "h5py", "scipy", "click", "rich", "psutil",
    "ClusterShell",
)  # fmt: skip
_OPTIONAL = {"matplotlib": "plot", "scikit-learn": "demo"}


def look_at_software() -> Iterator[Finding]:
    """Check what is installed.

    Yields
    ------
    Finding
        One for each thing looked at.
    """
    yield _python()
    yield from looked("packages", lambda: [_packages()])
    yield from looked("extras", lambda: [_extras()], needed=False)
    yield from looked("HDF5", lambda: [_hdf5()])
    yield from looked("numba", lambda: [_numba()])
    yield _shortcuts()
    yield from looked("remembered", lambda: [_remembered()], needed=False)
    yield from looked("GPU", lambda: [_gpu()], needed=False)


def _python() -> Finding:
    """Tell which Python this is."""
    found = f"{platform.python_version()} ({sys.executable})"
    return Finding("Python", "ok", found)  # an older one does not install this package


def _version(package: str) -> str | None:
    """Tell the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Finding:
    """Check that everything required is installed."""
    versions = {package: _version(package) for package in _REQUIRED}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        remedy = f"{sys.executable} -m pip install {' '.join(missing)}"
        return Finding("packages", "fail", f"missing: {', '.join(missing)}", remedy)
    return Finding("packages", "ok", ", ".join(f"{name} {v}" for name, v in versions.items()))


def _extras() -> Finding:
    """Look which optional packages are there."""
    versions = {package: _version(package) for package in _OPTIONAL}
    missing = [package for package, version in versions.items() if version is None]
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    if not missing:
        return Finding("extras", "ok", found)
    extras = ",".join(_OPTIONAL[package] for package in missing)
    return Finding("extras", "warn", found, f"pip install 'closeranks[{extras}]' if wanted")


def _hdf5() -> Finding:
    """Check that HDF5 loads."""
    try:
        import h5py
    except (ImportError, OSError) as wrong:
        return Finding("HDF5", "fail", str(wrong), f"{sys.executable} -m pip install h5py")
    parallel = "parallel" if h5py.get_config().mpi else "serial"
    return Finding("HDF5", "ok", f"{h5py.version.hdf5_version}, {parallel}")


def _numba() -> Finding:
    """Check that numba can compile for this processor, and where its code is kept."""
    try:
        import numba

        numba.njit("int64(int64)")(_successor)
        kept = cache_folder()
    except Exception as wrong:  # whatever a compiler raises is the finding
        return Finding("numba", "fail", f"{type(wrong).__name__}: {wrong}", "reinstall numba")
    where = f"code kept in {kept}" if kept else "no place to keep code: every process compiles"
    said = f"{numba.__version__}, llvmlite {_version('llvmlite')}, {where}"
    return Finding("numba", "ok" if kept else "warn", said, "" if kept else "set CLOSERANKS_CODE")


def _successor(number: int) -> int:
    """Add one; something small to compile."""
    return number + 1


def _shortcuts() -> Finding:
    """Tell whether compiled shortcuts were proven in these versions."""
    python, numpy = versions()
    here = f"Python {python}, NumPy {numpy}"
    if are_listed():
        return Finding("shortcuts", "ok", f"compiled, for {here}")
    known = ", ".join(f"{one} with {other}" for one, other in sorted(PROVEN))
    return Finding("shortcuts", "warn", f"off: not proven in {here}; short calls take longer",
                   f"Python and NumPy in which they are: {known}")  # fmt: skip


#: So many files are named.
_NAMED = 4


def _remembered() -> Finding:
    """Tell where findings of trials are kept, and which files are ignored."""
    try:
        is_on = switch("REMEMBER", unset=True)
    except UsageError as wrong:
        return Finding("remembered", "fail", f"CLOSERANKS_REMEMBER {wrong.problem}", wrong.remedy)
    if not is_on:
        return Finding("remembered", "ok", "nothing: CLOSERANKS_REMEMBER is off")
    seen = look_at_folder()
    if seen.problem is not None:
        where = f" of {seen.folder}" if seen.folder else ""
        remedy = "let XDG_CACHE_HOME name a folder of your own; chmod 700 the closeranks in it"
        return Finding("remembered", "warn", f"nothing{where}: {seen.problem}", remedy)
    found = f"files of findings in {seen.folder}: {seen.good}"
    if not seen.ignored:
        return Finding("remembered", "ok", found)
    named = [f"{name} ({why})" for name, why in list(seen.ignored.items())[:_NAMED]]
    more = len(seen.ignored) - len(named)
    named += [f"{more} more"] if more else []
    remedy = f"remove what is ignored from {seen.folder}; jobs measure again and write anew"
    return Finding("remembered", "warn", f"{found}; ignored: {', '.join(named)}", remedy)


def _gpu() -> Finding:
    """Look for NVIDIA GPUs and for what drives them from Python."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("GPU", "ok", "none")
    done = subprocess.run(
        [tool, "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    names = done.stdout.strip().splitlines()
    if done.returncode != 0 or not names:
        return Finding("GPU", "warn", "nvidia-smi finds none", "check the driver")
    found = f"{len(names)} x {names[0]}"
    if any(_version(package) for package in ("cupy", "cupy-cuda12x", "cupy-cuda13x")):
        return Finding("GPU", "ok", found)
    return Finding(
        "GPU",
        "warn",
        f"{found}, no CuPy",
        "pip install 'closeranks[cuda]' ([cuda13] for CUDA 13)",
    )


_RANK = (
    "import sys; from mpi4py import MPI; c = MPI.COMM_WORLD; n = c.allreduce(1); "
    "levels = {MPI.THREAD_SINGLE: 'single', MPI.THREAD_FUNNELED: 'funneled', "
    "MPI.THREAD_SERIALIZED: 'serialized', MPI.THREAD_MULTIPLE: 'multiple'}; "
    "c.rank == 0 and sys.stdout.write(f'ranks {n} level {levels[MPI.Query_thread()]}')"
)
_LEAST_SHM = 256 * 2**20


def look_at_machine() -> Iterator[Finding]:
    """Check what jobs will run on.

    Yields
    ------
    Finding
        One for each thing looked at.
    """
    yield from looked("cores", lambda: [_cores()])
    yield from looked("/dev/shm", lambda: [_shared_memory()])
    yield from looked("MPI", _mpi)
    yield from looked("InfiniBand/RoCE", lambda: [_fabric()], needed=False)
    yield from looked("SLURM", lambda: [_slurm()], needed=False)
    yield from looked("emulated cluster", lambda: [_lab()], needed=False)


def _cores() -> Finding:
    """Look how many cores are usable, and what takes the others."""
    there, mask, quota = os.cpu_count() or 1, len(os.sched_getaffinity(0)), cgroup_quota()
    limits = [f"affinity mask {mask}"] if mask < there else []
    limits += [f"cgroup quota {quota:g}"] if quota is not None else []
    found = ", ".join([f"{usable_cores()} of {there} usable", *limits])
    if usable_cores() < there:
        remedy = "more ranks than usable cores share them and yield when idle"
        return Finding("cores", "warn", found, remedy)
    return Finding("cores", "ok", found)


def _shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Check that ranks of a node can share memory."""
    if not os.access(folder, os.W_OK):
        return Finding(str(folder), "fail", "not writable", "mount a tmpfs there")
    try:
        shared_folder.folder(folder)
    except Unavailable as wrong:
        return Finding(str(folder), "fail", wrong.what, wrong.remedy)
    usage = shutil.disk_usage(folder)
    found = f"{usage.free / 2**30:.2f} GiB free of {usage.total / 2**30:.2f}"
    if usage.free < _LEAST_SHM:
        remedy = "containers: --shm-size=1g; else remove what old jobs left there"
        return Finding(str(folder), "warn", found, remedy)
    return Finding(str(folder), "ok", found)


def _mpi() -> Iterator[Finding]:
    """Check library, launcher, and that two ranks find each other."""
    try:
        library = of_python(sys.executable)
    except Error as wrong:
        yield Finding("MPI library", "fail", wrong.operation, wrong.remedy)
        return
    yield Finding("MPI library", "ok", str(library))
    try:
        launcher = choose(library)
    except Error as wrong:
        yield Finding("MPI launcher", "fail", f"{wrong.operation}: {wrong.problem}", wrong.remedy)
        return
    yield Finding("MPI launcher", "ok", str(launcher))
    yield _two_ranks()


def _two_ranks() -> Finding:
    """Start two ranks and ask for their thread level; ended as a job is, if need be."""
    words = [sys.executable, "-m", "closeranks", "run", "-n", "2", "--", sys.executable, "-c"]
    try:
        done = subprocess.run(
            [*words, _RANK], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "two ranks", "fail", "no end within 60 s", "try closeranks run -n 2 -- hostname"
        )
    _, _, said = done.stdout.partition("ranks ")
    count, _, level = said.partition(" level ")
    if done.returncode != 0 or count != "2":
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        found = f"{count} rank in each world" if count else last
        return Finding("two ranks", "fail", found, "try closeranks run -n 2 -- hostname")
    if level.strip() == "multiple":
        return Finding("two ranks", "ok", "found each other, thread level multiple")
    remedy = "operations make no progress in the background; ask for a library built with threads"
    return Finding("two ranks", "warn", f"thread level {level.strip()}", remedy)


def _fabric() -> Finding:
    """Look for a fast network."""
    return Finding(
        "InfiniBand/RoCE", "ok", "present" if has_fabric() else "none: TCP between nodes"
    )


def _slurm() -> Finding:
    """Look for SLURM and the plugins MPI needs."""
    path = shutil.which("srun")
    if path is None:
        return Finding("SLURM", "ok", "not on this machine")
    there = slurm_srun.plugins(path)
    inside = f"inside job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
    if not there:
        return Finding("SLURM", "ok", f"{path}, no cluster answers")
    found = ", ".join(filter(None, [path, f"MPI plugins {' '.join(sorted(there))}", inside]))
    if there.isdisjoint(slurm_srun.PLUGINS.values()):
        return Finding("SLURM", "warn", found, "run uses mpirun instead of srun")
    return Finding("SLURM", "ok", found)


def _lab() -> Finding:
    """Start an emulated cluster of two nodes."""
    words = [sys.executable, "-m", "closeranks", "lab", "--nodes", "2", "--", "true"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return Finding("emulated cluster", "warn", "no end within 60 s")
    if done.returncode == 0:
        return Finding("emulated cluster", "ok", "two nodes started")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    problem, _, remedy = last.removeprefix("closeranks: error: ").partition("; ")
    return Finding("emulated cluster", "warn", problem, remedy)


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@click.command()
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the findings to this file.",
)  # fmt: skip
def doctor(json_path: Path | None) -> None:
    """Check this environment and say what to do about what is wrong.

    Starts two ranks and an emulated cluster for a moment.  The exit status
    is 1 if something that must work does not.
    """
    if program.inside_a_job():
        raise UsageError("doctor", "called inside an MPI job", "call it outside")
    target.check("doctor", json_path)
    findings = [*look_at_software(), *look_at_machine()]
    show(findings)
    if json_path is not None:
        rows = [finding.row() for finding in findings]
        target.write("doctor", json_path, json.dumps(rows, indent=1) + "\n")
    if any(finding.state == "fail" for finding in findings):
        raise SystemExit(1)


def show(findings: list[Finding]) -> None:
    """Write the findings as a table.

    Parameters
    ----------
    findings : list of Finding
        Findings of all checks.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("check", "", "found", "way out", box=None, header_style="bold")
    for finding in findings:
        colour = _COLOURS[finding.state]
        state = f"[{colour}]{finding.state}[/{colour}]"
        table.add_row(finding.check, state, escape(finding.found), escape(finding.remedy))
    Console().print(table)
