"""Rows beyond the matrix: an interrupt, MPI_Abort, a rank that only takes long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from closeranks.jobs.launch.openmpi_mpirun import session
from tests.conftest import ROOT, Launch
from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "beyond.py"
COMMAND = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]


@asks(Question("beyond.py", ("long",)))
def test_who_computes_for_long_is_not_lost(answer: Answer) -> None:
    assert "4 ranks, epoch 0" in answer.text, answer.whole
    assert answer.status == 0


@pytest.mark.parametrize("how", ["abort", "exit"])
@asks(lambda how: Question("beyond.py", (how,), dies=1, stays=True))
def test_who_ends_without_a_word_is_missed(answer: Answer, how: str) -> None:
    assert "3 ranks, epoch 1" in answer.text, answer.whole


@asks(Question("beyond.py", ("children",), dies=1))
def test_what_a_dead_rank_has_started_ends_with_it(answer: Answer) -> None:
    assert "3 ranks, epoch 1" in answer.text, answer.whole
    assert answer.status == 0
    assert not [one for one in psutil.process_iter(["cmdline"])
                if (one.info["cmdline"] or ())[:2] == ["sleep", "300.5"]]  # fmt: skip


def test_who_ends_as_it_should_is_not_missed(launch: Launch) -> None:
    done = launch([*COMMAND, sys.executable, str(PROGRAM), "early"])
    assert "nobody is missed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_a_program_without_a_launcher_has_nobody_to_watch(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    done = launch([sys.executable, str(PROGRAM), "alone"])
    assert "1 ranks, epoch 0" in done.stdout, done.stdout
    assert done.returncode == 0


@pytest.fixture
def endless() -> Iterator[tuple[int, list[psutil.Process]]]:
    """A job that goes on until somebody ends it: its process group, and all processes."""
    with session() as own:
        process = subprocess.Popen(
            [*COMMAND, sys.executable, str(PROGRAM), "loop"],
            cwd=ROOT,
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=os.setpgrp,  # as a terminal's job, in its session
        )
        first = psutil.Process(process.pid)
        family = [first]
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ten steps\n"
            family += first.children(recursive=True)
            assert len(family) >= 6
            yield process.pid, family
        finally:
            process.terminate()  # it removes its folder
            psutil.wait_procs(family, timeout=10)
            for member in family:
                if member.is_running():
                    member.kill()
            process.communicate(timeout=10)


@pytest.mark.parametrize("kill", [os.killpg, os.kill])  # as a terminal does, or a supervisor
def test_an_interrupt_ends_the_whole_job(
    endless: tuple[int, list[psutil.Process]], kill: Callable[[int, int], None]
) -> None:
    group, family = endless
    kill(group, signal.SIGINT)
    assert family[0].wait(timeout=30) != 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive


def test_a_job_that_is_suspended_goes_on(endless: tuple[int, list[psutil.Process]]) -> None:
    group, family = endless
    ranks = [one for one in family if str(PROGRAM) in one.cmdline() and one is not family[0]]
    ranks = [one for one in ranks if not one.name().startswith(("mpirun", "prterun"))]
    assert len(ranks) == 4
    for _ in range(2):
        os.killpg(group, signal.SIGTSTP)  # Ctrl-Z
        time.sleep(1.5)
        assert {one.status() for one in ranks} == {psutil.STATUS_STOPPED}
        os.killpg(group, signal.SIGCONT)  # fg
        time.sleep(1)
        assert psutil.STATUS_STOPPED not in {one.status() for one in ranks}
