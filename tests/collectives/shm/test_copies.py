"""Whether copies go past the caches: learned from what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.shm import copies
from closeranks.collectives.shm import segment_layout as words

LINE_CHEAP, LINE_FETCHED, LINE_BEYOND = 4, 20, 2


class Rank:
    """What a rank has learned, and how it lays out segments whose costs are known."""

    def __init__(self) -> None:
        self.state = np.zeros(words.STATE, np.int64)
        self.frame = np.zeros(words.FRAME, np.int64)
        self.segment = 0

    def lay(self, through: int, segments: int = 1) -> int:
        """Lay out segments; lines cost ``through`` ticks unless they go past the caches."""
        past = 0
        for _ in range(segments):
            goes = copies.goes_past(self.frame, self.state, self.segment, 8192)
            way, ticks = (words.BEYOND, LINE_BEYOND) if goes else (words.THROUGH, through)
            copies._learn(self.state, way, ticks * words.LINES)
            past += goes
            self.segment += 1
        return past


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_cheap_lines_go_through_the_caches(rank: Rank) -> None:
    assert rank.lay(LINE_CHEAP, 64) == 64 // words.OFTEN, "the other way is tried now and then"
    assert rank.lay(LINE_CHEAP, 320) == 320 // words.SELDOM


def test_lines_that_are_fetched_back_go_past_them(rank: Rank) -> None:
    rank.lay(LINE_FETCHED, 64)
    assert rank.lay(LINE_FETCHED, 320) == 320 - 320 // words.SELDOM


def test_a_few_disturbed_segments_change_nothing(rank: Rank) -> None:
    """Something else has driven the copy buffers out of the caches."""
    rank.lay(LINE_CHEAP, 64)
    rank.lay(LINE_FETCHED, words.WINDOW)
    assert not rank.state[words.PAST]


@pytest.mark.parametrize(
    ("before", "after", "past"), [(LINE_CHEAP, LINE_FETCHED, 1), (LINE_FETCHED, LINE_CHEAP, 0)]
)
def test_the_machine_may_change(rank: Rank, before: int, after: int, past: int) -> None:
    rank.lay(before, 100)
    assert rank.state[words.PAST] == 1 - past
    rank.lay(after, 2 * words.SELDOM + 2 * words.WINDOW)
    assert rank.state[words.PAST] == past
