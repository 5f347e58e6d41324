"""Arrivals: one line a rank, read by all."""

from __future__ import annotations

from typing import Any

import numpy as np

from closeranks.collectives.engine.late_ranks import Attendance
from closeranks.collectives.shm.segment_layout import LINE_BYTES, Arrivals

RANKS = (2, 5, 7)


class Silence:
    """A communicator of ranks that never speak."""

    rank, size = 5, 8

    def Iprobe(self, *_: Any) -> bool:
        return False


def test_all_see_where_each_is() -> None:
    memory = np.zeros(len(RANKS) * LINE_BYTES, np.uint8)
    all_of_them = [Arrivals(memory, mine, RANKS) for mine in range(len(RANKS))]
    all_of_them[1].write(3)
    all_of_them[2].write(1 << 40)
    assert [one.read() for one in all_of_them] == [{2: 0, 5: 3, 7: 1 << 40}] * 3


def test_the_first_collective_that_a_rank_is_in_counts() -> None:
    memory = np.zeros(len(RANKS) * LINE_BYTES, np.uint8)
    seen = Arrivals(memory, 0, RANKS)
    attendance: Any = Attendance(Silence(), 1, lambda: None)  # type: ignore[arg-type]
    attendance.count_in(Arrivals(memory, 1, RANKS))
    turns = [attendance.enter() for _ in range(3)]
    steps = [seen.read()[5]]
    for turn in (turns[1], turns[0], turns[2]):
        attendance.leave(turn)
        steps.append(seen.read()[5])
    attendance.enter()
    assert [*steps, seen.read()[5]] == [0, 0, 2, 3, 3]
    attendance.close()
