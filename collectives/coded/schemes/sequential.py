"""What schemes with a delay have: open jobs, rounds, and who was late in them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.worker_set import workers_of
from closeranks.collectives.coded.schemes.round_limit import (
    RoundLimit,
    attainable,
    few_to_wait_for,
)
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.task import CodedTask, SumTerm
from closeranks.comms import argument
from closeranks.errors import CodeError, UsageError


class Deliveries(Protocol):
    """What was delivered for a job."""

    def copy(self: _JobT) -> _JobT:
        """Give the same deliveries, to which others may be added."""


_JobT = TypeVar("_JobT", bound=Deliveries)
_SequentialT = TypeVar("_SequentialT", bound="Sequential")  # type: ignore[type-arg]


class Sequential(Scheme, Generic[_JobT]):
    """A scheme in which a job is open for ``delay + 1`` rounds.

    The round after the last one that is over is the one at hand: its tasks follow
    from the deliveries of those before it.

    Attributes
    ----------
    B, W, lam : int
        The stragglers that the scheme is made for: in any W rounds at most lam
        workers are late, each within B rounds that follow each other.
    """

    def _begin(self, where: str, n: int, B: int, W: int, lam: int) -> None:
        """Read the parameters; no job is open."""
        self.n = argument.whole(where, "n", n, least=1)
        self.B = argument.whole(where, "B", B, least=1)
        self.W = argument.whole(where, "W", W, least=1)
        self.lam = argument.whole(where, "lam", lam, below=self.n + 1)
        self._round = 1
        self._told: set[int] = set()
        self._tasks: list[tuple[CodedTask, ...]] | None = None
        self._limits: list[RoundLimit] | None = None
        self._jobs: dict[int, _JobT] = {}
        self._skipped: set[int] = set()
        self._decoded: set[int] = set()
        self._late_now: set[int] = set()
        # Round -> workers that were late, of the last W - 1 rounds.
        self._late: dict[int, frozenset[int]] = {}

    @abstractmethod
    def _open(self) -> _JobT:
        """Give a job for which nothing was delivered."""

    @abstractmethod
    def _assign(self, round: int) -> list[tuple[CodedTask, ...]]:
        """Give the tasks of the round at hand; its job is open."""

    @abstractmethod
    def _conditions(self, round: int) -> list[RoundLimit]:
        """Give the conditions under which the round at hand may end."""

    @abstractmethod
    def _note(self, job: _JobT, round: int, worker: int, task: CodedTask) -> None:
        """Note a delivery."""

    @abstractmethod
    def _whole(self, job: _JobT) -> bool:
        """Tell whether a job can be decoded."""

    @abstractmethod
    def _terms(self, job: _JobT) -> list[SumTerm]:
        """Give the terms of a job that can be decoded, in any order."""

    def _counts_as_late(self, late: frozenset[int]) -> frozenset[int]:
        """Give the late workers of a round as later rounds must see them."""
        return late

    def _at_hand(self, where: str, round: int) -> list[tuple[CodedTask, ...]]:
        """Give the tasks of the round at hand, which it must be."""
        if round != self._round:
            problem = f"round is {argument.shown(round)}, round {self._round} is at hand"
            raise UsageError(where, problem, "tell all workers' deliveries of each round in turn")
        if self._tasks is None:
            if round not in self._skipped:
                self._jobs[round] = self._open()
            self._tasks = self._assign(round)
            self._limits = None
        return self._tasks

    def _limits_at_hand(self, round: int) -> list[RoundLimit]:
        """Give the conditions, as they are before anything of the round is told."""
        if self._limits is None:
            self._limits = attainable(self._conditions(round))
        return self._limits

    def tasks(self, round: int) -> list[tuple[CodedTask, ...]]:
        """Give the tasks of the round after the last one that is over."""
        return list(self._at_hand("tasks", round))

    def deliver(self, round: int, worker: int, tasks: Sequence[CodedTask]) -> None:
        """Note what a worker has delivered; when all have been told, the round is over."""
        given = self._at_hand("deliver", round)
        worker = argument.whole("deliver", "worker", worker, below=self.n)
        if worker in self._told:
            problem = f"worker {worker} was told for round {round} before"
            raise UsageError("deliver", problem, "tell each worker once a round")
        mine = given[worker]
        for task in tasks:
            if not 0 <= task.slot < len(mine) or task != mine[task.slot]:
                problem = f"worker {worker} has no {task} in round {round}"
                raise UsageError("deliver", problem, "give tasks of that worker and round")
        self._limits_at_hand(round)
        self._told.add(worker)
        for task in tasks:
            if task.job in self._jobs:
                self._note(self._jobs[task.job], round, worker, task)
        if len({task.slot for task in tasks}) < len(mine):
            self._late_now.add(worker)
        if len(self._told) == self.n:
            self._end()

    def _end(self) -> None:
        """End the round at hand; drop what no later one needs."""
        over = self._round
        self._late[over] = self._counts_as_late(frozenset(self._late_now))
        self._late.pop(over - self.W + 1, None)
        for job in [job for job in self._decoded if job + self.delay < over]:
            self.forget(job)
        self._skipped.discard(over - self.delay)
        self._round, self._tasks, self._limits = over + 1, None, None
        self._told, self._late_now = set(), set()

    def decodable(self, job: int) -> bool:
        """Tell whether the sum can be had; not of a job that was forgotten."""
        return job in self._jobs and self._whole(self._jobs[job])

    def _finished(self, where: str, round: int, finished: Collection[int]) -> NDArray[np.bool_]:
        """Read which workers have finished, those without tasks among them."""
        tasks = self._at_hand(where, round)
        mask = np.array([not mine for mine in tasks])
        mask[list(workers_of(where, finished, self.n))] = True
        return mask

    def must_wait(self, round: int, finished: Collection[int]) -> set[int]:
        """Give workers that are enough, and none of which can be left out."""
        mask = self._finished("must_wait", round, finished)
        return few_to_wait_for(self._limits_at_hand(round), mask)

    def may_end(self, round: int, finished: Collection[int]) -> bool:
        """Tell whether a round may end now."""
        mask = self._finished("may_end", round, finished)
        return all(limit.allows(mask) for limit in self._limits_at_hand(round))

    def conforms(self, round: int, stragglers: Collection[int]) -> bool:
        """Tell whether a round may end without some workers by the authors' rule.

        The rule looks at the late workers of the rounds before and of this one,
        not at what was delivered: any W rounds have at most lam late workers, and
        those of each of them lie within B rounds that follow each other.

        Parameters
        ----------
        round : int
            The round after the last one that is over.
        stragglers : collection of int
            The workers that would be late in it.

        Returns
        -------
        bool
            Whether it may.
        """
        self._at_hand("conforms", round)
        late = workers_of("conforms", stragglers, self.n)
        if len(late.union(*self._late.values())) > self.lam:
            return False
        return all(
            round - before < self.B or late.isdisjoint(then) for before, then in self._late.items()
        )

    def decode(self, job: int) -> list[SumTerm]:
        """Give the terms of a job, by worker, round and slot."""
        if not self.decodable(job):
            problem = f"job {argument.shown(job)} is not decodable"
            problem += f" before round {self._round}" if job in self._jobs else ": it is not open"
            raise CodeError("decode", problem, f"a job is due {self.delay} rounds after its first")
        self._decoded.add(job)
        return sorted(self._terms(self._jobs[job]), key=lambda term: (term[1], term[0], term[2]))

    def skip(self, job: int) -> None:
        """Note, before its first round, that there is no such job."""
        job = argument.whole("skip", "job", job, least=1)
        if job < self._round or job in self._jobs:
            raise UsageError("skip", f"job {job} has begun", "skip it before its first round")
        self._skipped.add(job)

    def forget(self, job: int) -> None:
        """Drop a job; if its rounds are not over, it is skipped in the next ones."""
        self._jobs.pop(job, None)
        self._decoded.discard(job)

    def copy(self: _SequentialT) -> _SequentialT:
        """Give a scheme with the same deliveries."""
        other = super().copy()
        other._jobs = {number: job.copy() for number, job in self._jobs.items()}
        other._told, other._late = set(self._told), dict(self._late)
        other._late_now = set(self._late_now)
        other._skipped, other._decoded = set(self._skipped), set(self._decoded)
        return other


def inner_code(where: str, inner: object, n: int, s: int) -> GradientCode:
    """Make the code that a scheme uses.

    Parameters
    ----------
    where : str
        The scheme, for the text of an error.
    inner : type
        A class of exact gradient codes that takes ``n`` and ``s``.
    n, s : int
        Workers, and how many of them may be late.

    Returns
    -------
    GradientCode
        The code.

    Raises
    ------
    UsageError
        If it is no such class, or it has no such code.
    """
    remedy = "give a class of exact gradient codes, such as Repetition"
    if not isinstance(inner, type) or not issubclass(inner, GradientCode):
        raise UsageError(where, f"inner is {argument.shown(inner)}", remedy)
    try:
        code = inner(n, s)  # type: ignore[call-arg, arg-type]
    except TypeError:
        problem = f"{inner.__name__} does not take n and s"
        raise UsageError(where, problem, remedy) from None
    if not code.exact:
        raise UsageError(where, f"{inner.__name__} gives estimates", remedy)
    return code
