"""Real ranks on this machine through ``closeranks run``."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from closeranks.comms.discovery.node_hardware import usable_cores
from closeranks.jobs.launch.mpi_library import MpiLibrary
from tests.cluster.child import await_end, await_line, closeranks, end, said, start

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


def test_all_ranks_are_in_one_world_and_the_command_can_be_pasted(
    rank: str, linked: MpiLibrary
) -> None:
    ranks = 2 * usable_cores() + 1
    done = closeranks("run", "-n", str(ranks), "--", rank)
    assert done.returncode == 0, done.stderr
    assert [words[:2] for words in said(done.stdout)] == [
        [str(i), str(ranks)] for i in range(ranks)
    ]
    line = done.stderr.splitlines()[0]
    yields = {"openmpi": "mpi_yield_when_idle 1", "mpich": "ENABLE_HEAVY_YIELD 1"}
    assert yields[linked.kind] in line
    again = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=40)
    assert said(again.stdout) == said(done.stdout)


def test_ranks_that_have_cores_do_not_yield(rank: str) -> None:
    done = closeranks("run", "-n", "1", "--", rank)
    assert done.returncode == 0, done.stderr
    assert "yield" not in done.stderr.lower()


def test_the_librarys_noise_is_silenced(programs: Path) -> None:
    (programs / "window.py").write_text(
        "import numpy\nfrom mpi4py import MPI\n"
        "MPI.Win.Create(numpy.zeros(4), comm=MPI.COMM_WORLD).Free()\n"
    )
    done = closeranks("run", "-n", "2", "--", str(programs / "window.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1  # the command


@pytest.mark.parametrize("status", [1, 3, 75])
def test_the_programs_status_is_passed_on(status: int) -> None:
    done = closeranks("run", "-n", "1", "--", "sh", "-c", f"exit {status}")
    assert done.returncode == status


def test_a_launcher_of_another_library_starts_nothing(tmp_path: Path, linked: MpiLibrary) -> None:
    other = {"openmpi": "HYDRA build details: Version: 9.9", "mpich": "mpirun (Open MPI) 9.9"}
    launcher = tmp_path / "mpirun"
    launcher.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo {shlex.quote(other[linked.kind])} && exit\n'
        f"touch {tmp_path}/started\n"
    )
    launcher.chmod(0o755)
    done = closeranks("run", "-n", "4", "--launcher", str(launcher), "--", "true")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"linked with {linked}" in done.stderr
    assert "each rank would be a job of one" in done.stderr
    assert not (tmp_path / "started").exists()


#: How a job is started whose end is asked for; see `ways`.
WAYS = {
    "run": ("run", "-n", "2"),
    "run --faults": ("run", "-n", "2", "--faults"),
    "lab": ("lab", "--nodes", "2", "--no-check"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, linked: MpiLibrary) -> Iterator[tuple[str, ...]]:
    """Words that start a job, where they can; interrupts are not ignored."""
    words = WAYS[request.param]
    if "--faults" in words and linked.kind != "openmpi":
        pytest.skip("ranks may die with Open MPI only")
    if words[0] == "lab":
        done = closeranks(*words, "--", "true")
        if "not available here" in done.stderr:
            pytest.skip(done.stderr.splitlines()[-1])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield words
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_it_alone_ends_the_job_with_its_status(
    way: tuple[str, ...], sleeper: str, number: signal.Signals
) -> None:
    child = start(*way, "--", sleeper, "30")
    await_line(child, "ready")
    family = psutil.Process(child.pid).children(recursive=True)
    sent_s = time.monotonic()
    os.kill(child.pid, number)
    assert end(child).returncode == 128 + number
    assert time.monotonic() - sent_s < 5
    assert await_end(family) == []


def test_ctrl_c_ends_the_job_with_its_status(way: tuple[str, ...], sleeper: str) -> None:
    words = [sys.executable, "-m", "closeranks", *way, "--", sleeper, "30"]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(words[0], words)
    said, sent_s = b"", 0.0
    with suppress(OSError):  # all who could write have ended
        while select.select([terminal], [], [], 20)[0] and (more := os.read(terminal, 4096)):
            said += more
            if b"ready" in said and not sent_s:
                os.write(terminal, b"\x03")
                sent_s = time.monotonic()
    os.close(terminal)  # ends who has not
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130, said.decode()
    assert time.monotonic() - sent_s < 5


def test_a_program_that_ends_well_on_a_signal_has_ended_well(
    programs: Path, linked: MpiLibrary
) -> None:
    if linked.kind == "openmpi":
        pytest.skip("Open MPI's launcher kills whoever does not end on the signal")
    (programs / "polite.py").write_text(
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in all threads\n"
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.Barrier()\nif MPI.COMM_WORLD.rank == 0: print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\nsys.exit(int(sys.argv[1]))\n"
    )
    for status in (0, 75):
        child = start("run", "-n", "2", "--", str(programs / "polite.py"), str(status))
        await_line(child, "ready")
        os.kill(child.pid, signal.SIGTERM)
        assert end(child).returncode == status


def test_the_first_rank_reads_standard_input(programs: Path) -> None:
    (programs / "reads.py").write_text(
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 0: print('read', input(), flush=True)\n"
    )
    words = [sys.executable, "-m", "closeranks", "run", "-n", "2", "--", f"{programs}/reads.py"]
    done = subprocess.run(words, input="a line\n", capture_output=True, text=True, timeout=40)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "read a line\n"
