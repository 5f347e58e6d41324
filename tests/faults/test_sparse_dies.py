"""A rank that dies amid `Allreduce_sparse`, inside of attempts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("algorithm", "kernel"),
    [("split", "pair_layout"), ("split", "pair_merge"), ("split", "pair_join"),
     ("doubling", "pair_split")],
)  # fmt: skip
@asks(lambda algorithm, kernel: Question("sparse_dies.py", (algorithm, kernel), dies=1))
def test_the_others_go_on(answer: Answer, algorithm: str, kernel: str) -> None:
    assert all(f"seat {seat}: ok" in answer.text for seat in (0, 2, 3)), answer.whole
    assert answer.status == 0, answer.whole


ALARM = """\
import signal, time
import closeranks as cr
from closeranks.collectives.sparse import SparseVector


class Alarm(Exception):
    pass


def raising(*_):
    raise Alarm


with cr.init() as comm:
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, raising)
    for turn in range(4):
        if comm.rank == 0:
            time.sleep(0.3)
        try:
            if comm.rank == 1 and turn == 1:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
            comm.Allreduce_sparse(SparseVector([turn], [1.0], 100))
        except Alarm:
            pass
"""


def test_a_handler_that_raises_lets_nobody_wait(launch: Launch, tmp_path: Path) -> None:
    """The call is made of several: this rank makes no further one of them."""
    program = tmp_path / "alarm.py"
    program.write_text(ALARM)
    done = launch([sys.executable, "-m", "closeranks", "run", "-n", "3", "--", str(program)])
    assert done.returncode != 0, done.stdout
    assert "rank 1 left by Alarm" in done.stdout, done.stdout
