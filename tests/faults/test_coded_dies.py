"""A rank that dies in a round of a coded sum: the others go on, with the right sums."""

from __future__ import annotations

import pytest

from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

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


@pytest.mark.share(2)
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
