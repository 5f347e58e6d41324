"""Real ranks on this machine through ``closeranks run``."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from closeranks.comms.cores import usable_cores
from closeranks.jobs.library import Library
from tests.cluster.child import await_end, await_line, closeranks, end, said, start

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


def test_all_ranks_are_in_one_world_and_the_command_can_be_pasted(
    rank: str, linked: Library
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


def test_a_launcher_of_another_library_starts_nothing(tmp_path: Path, linked: Library) -> None:
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


def test_ending_it_ends_the_ranks(sleeper: str) -> None:
    child = start("run", "-n", "2", "--", sleeper, "30")
    await_line(child, "ready")
    family = psutil.Process(child.pid).children(recursive=True)
    os.kill(child.pid, signal.SIGTERM)
    assert end(child).returncode != 0
    assert await_end(family) == []
