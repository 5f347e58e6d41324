"""What a stage leaves behind, and the small tools that all stages share.

A stage writes one rank's part of a collective over a group.  It is a generator
``stage(out, members, me, ..., after, slot)``: `out` is the pen, ``members``
the ranks of the group with ``members[me] == out.rank``, ``after`` the steps
that must be done before it reads or writes a block of the caller, ``slot`` its
first message slot (it uses fewer than ``2 len(members) + 2``).  It yields now
and then, so that plans stay lazy, and returns a `Stage`.  Stages that only
fill blocks also take ``free``: further steps to wait for before they write.

Every stage keeps to one rule about memory: ``source`` blocks are read, never
written, and may be the very memory of the target blocks (in place).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import REDUCING, Problem
from closeranks.collectives.plans.schedule import NOTHING, After, Script

Members = Sequence[int]
#: Gives the block of member ``j``.
BlockOf = Callable[[int], Block]


class Stage(NamedTuple):
    """What later stages wait for.

    Attributes
    ----------
    done : tuple of int
        Once these are done the stage's result may be read on this rank.
    busy : tuple of int
        Once these are done too, the blocks that the stage was given may be
        written again (until then some of them are still being sent).
    """

    done: After
    busy: After = ()

    @property
    def over(self) -> After:
        """Everything: the result is there and no block is in use."""
        return self.done + self.busy


Writing = Generator[None, None, Stage]


class Window:
    """Lets at most ``width`` steps of one stream be in flight.

    Parameters
    ----------
    width : int
        Steps in flight, at least 1.
    after : tuple of int
        What the first steps wait for.
    """

    __slots__ = ("_after", "_recent", "_width")

    def __init__(self, width: int, after: After = ()) -> None:
        self._width = width
        self._after = after
        self._recent: deque[int] = deque(maxlen=width)

    def gate(self) -> After:
        """Return what the next step must wait for."""
        recent = self._recent
        return (recent[0],) if len(recent) == self._width else self._after

    def admit(self, step: int) -> None:
        """Take note of a step written behind the `gate`."""
        if step != NOTHING:
            self._recent.append(step)

    def tail(self) -> After:
        """Return steps whose end is the end of the whole stream."""
        return tuple(self._recent) or self._after


def passed(step: int, before: After) -> After:
    """Return what follows ``step``, which was written after ``before``.

    A step that was not written hands on what it would have waited for.
    """
    return before if step == NOTHING else (step,)


def bring(out: Script, source: Block, target: Block, after: After = ()) -> After:
    """Copy ``source`` to ``target`` unless it is there; return what to wait for."""
    if source == target:
        return after
    return passed(out.copy(source, target, after), after)


def seats(problem: Problem, rank: int) -> tuple[list[int], int]:
    """Return the ranks in a flat algorithm's order, and ``rank``'s place.

    Ranks of one node are neighbours, except where operands must not change
    places: there it is rank order.
    """
    if problem.operation in REDUCING and not problem.commutative:
        return list(range(problem.size)), rank
    return problem.members, int(np.flatnonzero(problem.order == rank)[0])
