"""Schemes in which a worker has one task a round, the same in every round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TypeVar

from closeranks.collectives.coded.codes.worker_set import workers_of
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.task import CodedTask, SumTerm
from closeranks.comms import argument
from closeranks.errors import CodeError, UsageError

_OneTaskT = TypeVar("_OneTaskT", bound="OneTask")


def check_round(where: str, round: int, tasks: Sequence[CodedTask]) -> None:
    """Refuse tasks of another round, where a job has one round."""
    for task in tasks:
        if task.job != round:
            problem = f"a task of round {task.job} in round {round}"
            raise UsageError(where, problem, "give tasks of that worker and round")


class OneTask(Scheme):
    """One round a job, one task a worker.

    A job is kept until it was decoded and its round is over.
    """

    def _use(self, rows: Sequence[tuple[tuple[int, ...], tuple[float, ...]]], parts: int) -> None:
        """Take the parts of each worker and their coefficients."""
        self.n, self.parts = len(rows), parts
        self.load = max(len(mine) for mine, _ in rows) / parts
        self._rows = list(rows)
        self._busy = frozenset(worker for worker, (mine, _) in enumerate(rows) if mine)
        self._delivered: dict[int, set[int]] = {}
        self._told: dict[int, int] = {}
        self._decoded: set[int] = set()

    @abstractmethod
    def _weights(self, finished: frozenset[int]) -> Sequence[float] | None:
        """Give the weights of the workers' vectors, or None if there are none."""

    @abstractmethod
    def _enough(self, finished: frozenset[int]) -> bool:
        """Tell whether there are weights."""

    def _helpful(self, finished: frozenset[int]) -> set[int]:
        """Give the workers that may help when too few have finished."""
        return set(self._busy - finished)

    def tasks(self, round: int) -> list[tuple[CodedTask, ...]]:
        """Give each worker its one task; none to a worker without parts."""
        return [
            (CodedTask(round, 0, parts, factors),) if parts else () for parts, factors in self._rows
        ]

    def deliver(self, round: int, worker: int, tasks: Sequence[CodedTask]) -> None:
        """Note whether a worker has delivered."""
        worker = argument.whole("deliver", "worker", worker, below=self.n)
        check_round("deliver", round, tasks)
        there = self._delivered.setdefault(round, set())
        if tasks:
            there.add(worker)
        self._told[round] = self._told.get(round, 0) + 1
        for job in [job for job in self._decoded if job < round and self._told[job] >= self.n]:
            self.forget(job)

    def decodable(self, job: int) -> bool:
        """Tell whether the workers that have delivered make the sum."""
        return self._enough(frozenset(self._delivered.get(job, ())))

    def must_wait(self, round: int, finished: Collection[int]) -> set[int]:  # noqa: ARG002
        """Give all workers that may help, while too few have finished."""
        there = workers_of("must_wait", finished, self.n) & self._busy
        return set() if self._enough(there) else self._helpful(there)

    def may_end(self, round: int, finished: Collection[int]) -> bool:  # noqa: ARG002
        """Tell whether there are enough."""
        return self._enough(workers_of("may_end", finished, self.n) & self._busy)

    def decode(self, job: int) -> list[SumTerm]:
        """Give one term a worker, ascending."""
        there = frozenset(self._delivered.get(job, ()))
        weights = self._weights(there)
        if weights is None:
            problem = f"job {job} cannot be had from workers {sorted(there)} of {self.n}"
            raise CodeError("decode", problem, "deliver more, or wait as must_wait says")
        self._decoded.add(job)
        return [SumTerm(job, who, 0, float(weights[who])) for who in sorted(there) if weights[who]]

    def forget(self, job: int) -> None:
        """Drop what was delivered for a job."""
        self._delivered.pop(job, None)
        self._told.pop(job, None)
        self._decoded.discard(job)

    def copy(self: _OneTaskT) -> _OneTaskT:
        """Give a scheme with the same deliveries."""
        other = super().copy()
        other._delivered = {round: set(there) for round, there in self._delivered.items()}
        other._told, other._decoded = dict(self._told), set(self._decoded)
        return other
