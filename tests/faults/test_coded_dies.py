"""A rank that dies in a round of a coded sum: the others go on, with the right sums."""

from __future__ import annotations

import pytest

from tests.conftest import Run
from tests.faults.questions import Answer, Question, asks

#: What the rank does when it dies.  "helping" and "claimed" are of partial repetition alone.
WHEN = (
    "waiting", "decided", "sending", "gathering", "late", "leaving", "computing", "entering",
    "constructing", "before", "layout", "closing",
)  # fmt: skip
CASES = [
    *((scheme, when) for scheme in ("partial", "repetition") for when in WHEN),
    ("partial", "helping"), ("partial", "claimed"), ("delayed", "waiting"), ("delayed", "decided"),
]  # fmt: skip
#: Deaths that the round survives: no rank raises before the attempt votes.
SURVIVED = ("gathering", "helping", "late", "leaving", "computing", "entering")


@pytest.mark.usefixtures("needs_open_mpi")
@pytest.mark.share(14)
@pytest.mark.parametrize(("scheme", "when"), CASES)
@asks(lambda scheme, when: Question("coded_dies.py", (scheme, when), dies=1))
def test_the_others_go_on(answer: Answer, scheme: str, when: str) -> None:
    turns = 50 if scheme != "delayed" else 40  # whose jobs under way are lost
    lines = [line for line in answer.text.splitlines() if line.startswith("seat")]
    assert sorted(line.split(":")[0] for line in lines) == ["seat 0", "seat 2", "seat 3"]
    for line in lines:
        assert ": of 0, 2, 3, " in line, (when, answer.whole)
        assert int(line.split(", ")[3].split()[0]) >= turns, (when, answer.whole)
        if when in SURVIVED and scheme != "delayed":
            assert "PeerLost" not in line, (when, answer.whole)
    assert answer.status == 0, answer.whole


@pytest.mark.usefixtures("needs_open_mpi")
@pytest.mark.share(3, least=0)
@pytest.mark.parametrize("scheme", ["partial", "repetition"])
@asks(lambda scheme: Question("coded_dies.py", (scheme, "computing", "replace"), 5, 1, 1))
def test_a_newcomer_makes_one_while_the_others_begin_anew(answer: Answer, scheme: str) -> None:
    del scheme
    for seat, turns in (0, 50), (1, 45), (2, 50), (3, 50):
        assert f"seat {seat}: of 0, 1, 2, 3, {turns} turns, " in answer.text, answer.whole
    assert answer.status == 0, answer.whole


@pytest.mark.usefixtures("needs_open_mpi")
@pytest.mark.share(3, least=0)
@asks(Question("coded_dies.py", ("fractional", "computing"), dies=1, stays=True))
def test_a_scheme_that_does_not_fit_the_others_is_refused_on_all(answer: Answer) -> None:
    words = "make a CodedAllreduce for the ranks that are there now"
    said = [line for line in answer.text.splitlines() if line.endswith(words)]
    assert sorted(line.split(":")[0] for line in said) == ["seat 0", "seat 2", "seat 3"]


MORTAL = """\
import os, signal, sys
import numpy as np
import closeranks as cr
from closeranks.collectives.coded import CodedAllreduce, PartialRepetition, Repetition

with cr.init() as comm:
    scheme = {"partial": PartialRepetition(4, 3), "repetition": Repetition(4, 1)}[sys.argv[1]]
    coded = CodedAllreduce(comm, scheme)
    for turn in range(20):
        if turn == 5 and comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        coded.step(lambda _: np.ones(10), 32)
    coded.close()
    print("went on")
"""


@pytest.mark.share(2)
@pytest.mark.parametrize("scheme", ["partial", "repetition"])
def test_a_job_that_survives_no_death_ends(mpirun: Run, scheme: str) -> None:
    done = mpirun(4, "-c", MORTAL, scheme, timeout_s=60)
    assert done.returncode != 0, done.stdout
    assert "went on" not in done.stdout
