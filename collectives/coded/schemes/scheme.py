"""What every scheme has: tasks, deliveries, and the sums that follow from them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TypeVar

from closeranks.collectives.coded.schemes.task import CodedTask, SumTerm
from closeranks.errors import UsageError

_SchemeT = TypeVar("_SchemeT", bound="Scheme")


class Scheme(ABC):
    """The work of ``n`` workers, round after round; rounds and jobs count from 1.

    Job ``t`` begins in round ``t`` and is due at the end of round ``t + delay``.
    The state of a scheme follows from its deliveries alone: all ranks that tell it
    the same deliveries have the same state.  In each round every worker is told
    once, with the tasks it has delivered; then the round is over.

    All methods are local and pure.

    Attributes
    ----------
    n, parts : int
        Workers, and parts of the batch of a job; all parts are of one size.
    load : float
        The largest share of a batch that one worker computes in a round.
    delay : int
        Rounds after its first by whose end a job is due.
    exact : bool
        Whether the sums are exact, not estimates.
    slots : int
        Vectors that a worker makes in a round, at most.
    micro : int
        Micro-batches into which a worker's work in a round is cut: a worker that
        is late gives up after any of them.
    """

    n: int
    parts: int
    load: float
    delay: int = 0
    exact: bool = True
    slots: int = 1
    micro: int = 8

    @abstractmethod
    def tasks(self, round: int) -> list[tuple[CodedTask, ...]]:
        """Give the tasks of each worker in a round.

        Parameters
        ----------
        round : int
            At most one more than the last one that is over.

        Returns
        -------
        list of tuple of CodedTask
            Worker -> tasks, in the order of work.
        """

    @abstractmethod
    def deliver(self, round: int, worker: int, tasks: Sequence[CodedTask]) -> None:
        """Note what a worker has delivered in a round.

        Parameters
        ----------
        round : int
            Which one.
        worker : int
            Which one.
        tasks : sequence of CodedTask
            Those of its tasks that it has finished; none if it was late.
        """

    @abstractmethod
    def decodable(self, job: int) -> bool:
        """Tell whether the sum of a job can be had from what was delivered."""

    @abstractmethod
    def must_wait(self, round: int, finished: Collection[int]) -> set[int]:
        """Give workers to wait for before a round may end.

        Ask again whenever one of them finishes: the answer may be empty before
        all of them have finished, and it is when all have.

        Parameters
        ----------
        round : int
            Which one.
        finished : collection of int
            Workers that have finished all their tasks of it.

        Returns
        -------
        set of int
            Empty if the round may end now: all others count as late.
        """

    def may_end(self, round: int, finished: Collection[int]) -> bool:
        """Tell whether `must_wait` is empty, in less time.

        Parameters
        ----------
        round : int
            Which one.
        finished : collection of int
            Workers that have finished all their tasks of it.

        Returns
        -------
        bool
            Whether the round may end now.
        """
        return not self.must_wait(round, finished)

    @abstractmethod
    def decode(self, job: int) -> list[SumTerm]:
        """Give the vectors whose weighted sum is the sum of a job.

        Parameters
        ----------
        job : int
            Which one; may be forgotten once it was decoded and its rounds are over.

        Returns
        -------
        list of SumTerm
            In a fixed order: by worker, round and slot.

        Raises
        ------
        CodeError
            If it is not decodable yet.
        """

    def skip(self, job: int) -> None:  # noqa: B027
        """Note that there is no such job: it has no tasks, and nobody waits for it.

        The rounds that end the last jobs of a scheme with a delay begin jobs that
        do not exist; say so before the round.  Where the delay is 0 there are no
        such rounds, and nothing happens.
        """

    @abstractmethod
    def forget(self, job: int) -> None:
        """Drop what is kept of a job that nobody will decode (any more).

        A job that was decoded is forgotten by itself, once its rounds are over.
        """

    def for_workers(self: _SchemeT, n: int) -> _SchemeT:
        """Give a new scheme of this kind for another number of workers.

        Parameters
        ----------
        n : int
            Workers.

        Returns
        -------
        Scheme
            With the parameters of this one, lowered where n is too small for them.

        Raises
        ------
        UsageError
            If this kind of scheme has none.
        """
        problem = f"no {type(self).__name__} of {self.n} workers follows for {n}"
        raise UsageError("for_workers", problem, "make a new scheme")

    def copy(self: _SchemeT) -> _SchemeT:
        """Give a scheme with the same state, which then goes its own way."""
        return copy.copy(self)
