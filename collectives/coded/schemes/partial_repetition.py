"""Partial repetition: first the own share, then those of others of the group."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from closeranks.collectives.coded.codes.worker_set import workers_of
from closeranks.collectives.coded.schemes.one_task import check_round
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.task import CodedTask, SumTerm
from closeranks.collectives.coded.schemes.work_sharing import MOST_MICRO
from closeranks.comms import argument
from closeranks.errors import CodeError

_PartialT = TypeVar("_PartialT", bound="PartialRepetition")


class PartialRepetition(Scheme):
    """Groups of s + 1 workers, each of which may compute what the others have.

    Each worker owns ``micro`` parts, its micro-batches.  It computes its own
    from the front, then those of the others of its group from the back.  A
    round ends when every micro-batch is done, by whomever: on calm days each
    worker computes its own share and nothing else, so the load is ``1 / n``.
    What a worker does next is chosen while the round runs, by
    `next_micro_batch`; `tasks` lists all it might do, in an order that needs
    no word from the others.

    This follows no paper.  Where ``s + 1`` does not divide n there are
    ``n // (s + 1)`` groups, whose sizes differ by at most 1.

    Parameters
    ----------
    n : int
        Workers.
    s : int
        How many may be late in a round, whichever they are.
    micro : int
        Micro-batches of the share of a worker.

    Attributes
    ----------
    groups : tuple of tuple of int
        The workers of each group, ascending.

    Raises
    ------
    UsageError
        If n < 1, s is outside of 0 to ``n - 1``, or micro outside of 1 to 62.
    """

    def __init__(self, n: int, s: int, micro: int = 8) -> None:
        where = "PartialRepetition"
        self.n = argument.whole(where, "n", n, least=1)
        self.s = argument.whole(where, "s", s, below=self.n)
        self.micro = argument.whole(where, "micro", micro, least=1, below=MOST_MICRO + 1)
        self.parts, self.load = self.n * self.micro, 1 / self.n
        count = self.n // (self.s + 1)
        self._group_of = [worker * count // self.n for worker in range(self.n)]
        self.groups = tuple(
            tuple(w for w, group in enumerate(self._group_of) if group == one)
            for one in range(count)
        )
        self._part_lists = [self._order(worker) for worker in range(self.n)]
        # Round -> part -> round, worker, slot of the task that counts.
        self._counted: dict[int, dict[int, SumTerm]] = {}
        self._told: dict[int, int] = {}
        self._decoded: set[int] = set()

    def for_workers(self, n: int) -> PartialRepetition:
        """Give the scheme for another number of workers, with groups of n at most."""
        return PartialRepetition(n, min(self.s, n - 1), self.micro)

    def group_of(self, worker: int) -> int:
        """Give the number of the group of a worker."""
        return self._group_of[argument.whole("group_of", "worker", worker, below=self.n)]

    def member_of(self, worker: int) -> int:
        """Give the number of a worker within its group."""
        return worker - self.groups[self.group_of(worker)][0]

    def slot(self, worker: int, member: int, number: int) -> int:
        """Give the slot of a worker's task that computes a micro-batch.

        Parameters
        ----------
        worker : int
            Who computes it.
        member : int
            Whose share it is of, as a number within the group of the worker.
        number : int
            Which micro-batch of that share it is.

        Returns
        -------
        int
            Its number among the tasks of the worker.
        """
        size = len(self.groups[self._group_of[worker]])
        step = (member - self.member_of(worker)) % size
        return step * self.micro + (self.micro - 1 - number if step else number)

    def _order(self, worker: int) -> tuple[int, ...]:
        """Give the parts that a worker may compute, its own first."""
        group = self.groups[self._group_of[worker]]
        mine, micro = worker - group[0], self.micro
        order = list(range(worker * micro, (worker + 1) * micro))
        for step in range(1, len(group)):
            first = group[(mine + step) % len(group)] * micro
            order.extend(range(first + micro - 1, first - 1, -1))
        return tuple(order)

    def tasks(self, round: int) -> list[tuple[CodedTask, ...]]:
        """Give each worker all it might compute, a micro-batch a task."""
        return [
            tuple(CodedTask(round, slot, (part,), (1.0,)) for slot, part in enumerate(parts))
            for parts in self._part_lists
        ]

    def deliver(self, round: int, worker: int, tasks: Sequence[CodedTask]) -> None:
        """Note the micro-batches of a worker; those that are there already do not count."""
        worker = argument.whole("deliver", "worker", worker, below=self.n)
        check_round("deliver", round, tasks)
        counted = self._counted.setdefault(round, {})
        for task in tasks:
            for part in task.parts:
                counted.setdefault(part, SumTerm(round, worker, task.slot, 1.0))
        self._told[round] = self._told.get(round, 0) + 1
        for job in [job for job in self._decoded if job < round and self._told[job] >= self.n]:
            self.forget(job)

    def decodable(self, job: int) -> bool:
        """Tell whether every micro-batch was delivered."""
        return len(self._counted.get(job, ())) == self.parts

    def must_wait(self, round: int, finished: Collection[int]) -> set[int]:
        """Give the unfinished workers of groups that have work left.

        A worker of ``finished`` has finished all its tasks: the whole group's.
        """
        there = workers_of("must_wait", finished, self.n)
        counted = self._counted.get(round, {})
        open_groups = {
            number
            for number, group in enumerate(self.groups)
            if there.isdisjoint(group)
            and any(part not in counted for part in self._part_lists[group[0]])
        }
        return {worker for worker in range(self.n) if self._group_of[worker] in open_groups}

    def decode(self, job: int) -> list[SumTerm]:
        """Give one term with weight 1 a micro-batch, by worker and slot."""
        counted = self._counted.get(job, {})
        if len(counted) < self.parts:
            problem = f"job {job} has {len(counted)} of {self.parts} micro-batches"
            raise CodeError("decode", problem, "deliver more, or wait as must_wait says")
        self._decoded.add(job)
        return sorted(counted.values(), key=lambda term: (term.worker, term.slot))

    def forget(self, job: int) -> None:
        """Drop what was delivered for a job."""
        self._counted.pop(job, None)
        self._told.pop(job, None)
        self._decoded.discard(job)

    def copy(self: _PartialT) -> _PartialT:
        """Give a scheme with the same deliveries."""
        other = super().copy()
        other._counted = {round: dict(there) for round, there in self._counted.items()}
        other._told, other._decoded = dict(self._told), set(self._decoded)
        return other
