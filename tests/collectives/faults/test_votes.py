"""The outcome of a vote, for all bits that ranks may agree on."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import and_

import pytest

from closeranks.collectives.faults.votes import ABORT, AGAIN, AGREED, UNBEGUN, Outcome, outcome_of

VOTES = (AGREED, AGAIN, UNBEGUN, ABORT)
PATTERNS = range(0b1000)


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize(("vote", "agreed"), list(product(VOTES, PATTERNS)))
def test_every_pattern_has_the_outcome_of_the_table(vote: int, agreed: int, died: bool) -> None:
    well = 0 if died else agreed & 0b001
    if agreed & 0b110 == 0b000 and not well:
        expected = Outcome.LEAVE if vote == ABORT else Outcome.LEAVE_TOLD
    elif agreed & 0b110 == 0b110 and not well:
        expected = Outcome.REPEAT_UNBEGUN
    elif agreed == AGREED and not died:
        expected = Outcome.END
    else:
        expected = Outcome.REPEAT
    assert outcome_of(vote, agreed, died=died) is expected


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("votes", list(product(VOTES, repeat=3)))
def test_members_that_agree_do_the_same(votes: tuple[int, ...], died: bool) -> None:
    agreed = reduce(and_, votes)
    assert agreed in VOTES, "the bits of two votes in common are a vote"
    outcomes = [outcome_of(vote, agreed, died=died) for vote in votes]
    assert len({outcome.leaves for outcome in outcomes}) == 1
    assert len({outcome.goes_on for outcome in outcomes}) == 1
    assert len(set(outcomes) - {Outcome.LEAVE, Outcome.LEAVE_TOLD}) <= 1
    raises = [vote for vote, outcome in zip(votes, outcomes, strict=True)
              if outcome is Outcome.LEAVE]  # fmt: skip
    assert raises == [vote for vote in votes if vote == ABORT]
    assert (outcomes[0] is Outcome.END) == (set(votes) == {AGREED} and not died)
    assert (outcomes[0] is Outcome.REPEAT_UNBEGUN) == (set(votes) == {UNBEGUN})


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_member_ends_leaves_or_goes_on(outcome: Outcome) -> None:
    assert (outcome is Outcome.END) + outcome.leaves + outcome.goes_on == 1
