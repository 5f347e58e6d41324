"""A plan: what every rank does for one collective, as data.

A plan is described once and read by three interpreters: `execute` does it on
real buffers, `simulate` proves it, `cost` prices it.  It is lazy: a rank never
writes another rank's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.schedule import Script, Step
from closeranks.comms import argument

#: Writes one rank's steps; yields whenever some are worth handing over.
Builder = Callable[[Script, Problem], Generator[None, None, object]]


@dataclass(frozen=True)
class Algorithm:
    """A builder and what must hold for it.

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
        It sees the agreed part of the problem only, so all ranks agree.
    classes : callable or None
        ``classes(problem)`` gives an int array of shape (size,): ranks of equal
        number send as many messages and bytes over each level.  None: every
        rank is a class of its own, which only small plans can afford.
    symbolic : bool
        Whether some sizes are known only while it runs.
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
        What is asked for.
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

    def script(self, rank: int) -> tuple[Script, list[Step]]:
        """Write all steps of ``rank``.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.

        Returns
        -------
        tuple of (Script, list of Step)
            Its script (buffers and registers), and the steps.
        """
        rank = argument.whole("plan", "rank", rank, below=self.size)
        return self.written(rank, self.problem.seen_by(rank))

    def written(self, rank: int, problem: Problem) -> tuple[Script, list[Step]]:
        """Write the steps of ``rank`` for a problem, say with all counts known.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.
        problem : Problem
            The problem as this rank sees it.

        Returns
        -------
        tuple of (Script, list of Step)
            As of `script`.
        """
        script = self.blank(rank)
        for _ in self.algorithm.build(script, problem):
            continue
        return script, script.drain()

    def blank(self, rank: int) -> Script:
        """Return an empty script for ``rank``.

        Parameters
        ----------
        rank : int
            The rank, ``0 <= rank < size``.

        Returns
        -------
        Script
            With the buffers of the caller, without steps.
        """
        problem = self.problem
        rank = argument.whole("plan", "rank", rank, below=self.size)
        return Script(rank, problem.input_items(rank), problem.output_items(rank))

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
            A line a step: its number, and what it does.
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
