"""The doctor's checks of cores, memory, MPI, SLURM and emulated cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from closeranks.comms.discovery.cpu_count import cgroup_quota, usable_cores
from closeranks.comms.shm import shared_folder
from closeranks.errors import Error, Unavailable
from closeranks.jobs.check_result import Finding, looked
from closeranks.jobs.launch import slurm_srun
from closeranks.jobs.launch.launcher_choice import choose
from closeranks.jobs.launch.mpi_library import of_python
from closeranks.jobs.launch.run_command import has_fabric

_RANK = (
    "import sys; from mpi4py import MPI; c = MPI.COMM_WORLD; n = c.allreduce(1); "
    "levels = {MPI.THREAD_SINGLE: 'single', MPI.THREAD_FUNNELED: 'funneled', "
    "MPI.THREAD_SERIALIZED: 'serialized', MPI.THREAD_MULTIPLE: 'multiple'}; "
    "c.rank == 0 and sys.stdout.write(f'ranks {n} level {levels[MPI.Query_thread()]}')"
)
_LEAST_SHM = 256 * 2**20


def look() -> Iterator[Finding]:
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
