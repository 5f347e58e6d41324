"""A plan: the steps of every rank for one collective, as data.

A plan is described once and read by three interpreters: `execute` runs it on
real buffers, `simulate` proves it, `cost` prices it.  It is lazy: a rank never
writes another rank's steps.

A plan is made of stages.  A stage writes one rank's part of a collective over
a group.  It is a generator ``stage(out, members, me, ..., after, slot)``:

* ``out`` is the `Schedule` that it writes into;
* ``members`` are the ranks of the group, with ``members[me] == out.rank``;
* ``after`` are the steps that must be done before the stage reads or writes a
  block of the caller;
* ``slot`` is its first message slot; it uses fewer than ``2 len(members) +
  2``.

A stage yields now and then, so that plans stay lazy, and returns a `Stage`.
Stages that only fill blocks also take ``free``: further steps to wait for
before they write.

Every stage keeps to one rule about memory: ``source`` blocks are read, never
written, and may be the very memory of the target blocks (in place).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import REDUCING, Problem
from closeranks.collectives.plans.schedule import NOTHING, After, Schedule, Step
from closeranks.comms import argument

#: Writes one rank's steps; yields whenever some are worth handing over.
Builder = Callable[[Schedule, Problem], Generator[None, None, object]]


@dataclass(frozen=True)
class Algorithm:
    """A builder and its conditions.

    Attributes
    ----------
    name : str
        Name within its operation, for instance ``ring``.
    build : callable
        ``build(script, problem)``, a generator; ``problem`` holds only what
        ``script.rank`` knows.
    commutative : bool
        Whether it needs operands that may change places.
    refuses : callable or None
        ``refuses(problem)`` gives the reason why it does not apply, or None.
        It sees the agreed part of the problem only, so all ranks agree.  It looks
        at no size: what it says holds for every count.
    classes : callable or None
        ``classes(problem)`` gives an int array of shape (size,): ranks of equal
        number send as many messages and bytes over each level.  None: every
        rank is a class of its own, which only small plans can afford.
    symbolic : bool
        Whether some sizes are known only while it runs.
    follows : bool
        Whether its numbers follow from the count by whole-number arithmetic, so
        that counts share steps: see `closeranks.collectives.plans.count_record`.
    kernels : bool
        Whether kernels in node memory do part of it, which takes less time than
        the messages that it is priced by.
    """

    name: str
    build: Builder
    commutative: bool = False
    refuses: Callable[[Problem], str | None] | None = None
    classes: Callable[[Problem], NDArray[np.int64]] | None = None
    symbolic: bool = False
    follows: bool = True
    kernels: bool = False

    def objection(self, problem: Problem) -> str | None:
        """Return why this algorithm cannot serve ``problem``, or None."""
        if self.commutative and not problem.commutative:
            return "the reduction does not commute"
        return self.refuses(problem) if self.refuses else None


@dataclass(frozen=True, eq=False)
class Plan:
    """A collective, described.

    Attributes
    ----------
    problem : Problem
        The requested collective.
    algorithm : Algorithm
        How it is done.
    """

    problem: Problem
    algorithm: Algorithm

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.problem.size

    def steps(self, rank: int) -> Iterator[Step]:
        """Yield the steps of ``rank``, lazily.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.

        Yields
        ------
        Step
            In the order of their numbers.

        Raises
        ------
        UsageError
            If there is no such rank; so do the methods below.
        """
        script = self.blank(rank)
        for _ in self.algorithm.build(script, self.problem.seen_by(script.rank)):
            yield from script.drain()
        yield from script.drain()

    def script(self, rank: int) -> tuple[Schedule, list[Step]]:
        """Write all steps of ``rank``.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.

        Returns
        -------
        tuple of (Schedule, list of Step)
            Its script (buffers and registers), and the steps.
        """
        rank = argument.whole("plan", "rank", rank, below=self.size)
        return self.written(rank, self.problem.seen_by(rank))

    def written(self, rank: int, problem: Problem) -> tuple[Schedule, list[Step]]:
        """Write the steps of ``rank`` for a problem, say with all counts known.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.
        problem : Problem
            The problem as this rank sees it.

        Returns
        -------
        tuple of (Schedule, list of Step)
            As of `script`.
        """
        script = self.blank(rank)
        for _ in self.algorithm.build(script, problem):
            continue
        return script, script.drain()

    def blank(self, rank: int) -> Schedule:
        """Return an empty script for ``rank``.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.

        Returns
        -------
        Schedule
            With the buffers of the caller, without steps.
        """
        problem = self.problem
        rank = argument.whole("plan", "rank", rank, below=self.size)
        return Schedule(rank, problem.input_items(rank), problem.output_items(rank))

    def classes(self) -> NDArray[np.int64]:
        """Return the class of every rank, shape (size,), see `Algorithm`."""
        if self.algorithm.classes is None:
            return np.arange(self.size)
        return self.algorithm.classes(self.problem)

    def text(self, rank: int) -> str:
        """Print the steps of ``rank``.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.

        Returns
        -------
        str
            A line a step: its number, kind and blocks.
        """
        return "\n".join(f"{number:4d}  {step}" for number, step in enumerate(self.steps(rank)))

    def __str__(self) -> str:
        """Print the plan in one line."""
        problem = self.problem
        how_much = f"{problem.count} elements" if problem.counts is None else "given counts"
        return (
            f"{problem.operation} of {how_much} of {problem.itemsize} B"
            f" over {problem.size} ranks: {self.algorithm.name}"
        )


Members = Sequence[int]
#: Gives the block of member ``j``.
BlockOf = Callable[[int], Block]


class Stage(NamedTuple):
    """The steps that later stages wait for.

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
        """All steps: the result is there and no block is in use."""
        return self.done + self.busy


Writing = Generator[None, None, Stage]


class Window:
    """Lets at most ``width`` steps of one stream be in flight.

    Parameters
    ----------
    width : int
        Steps in flight, at least 1.
    after : tuple of int
        Steps that the first steps wait for.
    """

    __slots__ = ("_after", "_recent", "_width")

    def __init__(self, width: int, after: After = ()) -> None:
        self._width = width
        self._after = after
        self._recent: deque[int] = deque(maxlen=width)

    def credit(self) -> After:
        """Return the steps that the next step must wait for."""
        recent = self._recent
        return (recent[0],) if len(recent) == self._width else self._after

    def admit(self, step: int) -> None:
        """Take note of a step written behind the `credit`."""
        if step != NOTHING:
            self._recent.append(step)

    def tail(self) -> After:
        """Return steps that end with the whole stream."""
        return tuple(self._recent) or self._after


def passed(step: int, before: After) -> After:
    """Return the steps after ``step``, which was written after ``before``.

    If the step was not written, these are the steps before it.
    """
    return before if step == NOTHING else (step,)


def bring(out: Schedule, source: Block, target: Block, after: After = ()) -> After:
    """Copy ``source`` to ``target`` unless it is there; return steps to wait for."""
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
