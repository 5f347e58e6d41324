"""SR-SGC: a job that lacks results in its first round gets them B rounds later."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import accumulate

import numpy as np

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.collectives.coded.codes.repetition import Repetition
from closeranks.collectives.coded.schemes.round_limit import RoundLimit, Workers
from closeranks.collectives.coded.schemes.sequential import Sequential, inner_code
from closeranks.collectives.coded.schemes.task import CodedTask, SumTerm
from closeranks.errors import UsageError

#: Worker -> the round in which it delivered its vector.
_Job = dict[int, int]


class SRSGC(Sequential[_Job]):
    """Sequential gradient coding with selective repetition.

    In round r each worker computes its task of job r, but some compute that of
    job ``r - B`` again: as many as that job lacks of the vectors that make its
    sum.  So a code for fewer stragglers than lam is enough.

    It tolerates all (B, W, lam)-bursty patterns of late workers, and all with at
    most ``s = ceil(B lam / (W - 1 + B))`` of them a round.

    Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding for Straggler
    Mitigation", ICLR 2023, algorithm 1.  Departures: with an inner code whose
    workers form groups, one worker of each group without a result repeats,
    which is fewer; and a round may end, by `must_wait`, when somebody has
    finished, the job that is due can be decoded, and the new one lacks at most
    as many vectors as it may under the model.  No job is lost by that: what it
    lacks is computed when it is due.  The authors' rule is `conforms`.

    Parameters
    ----------
    n : int
        Workers.
    B, W, lam : int
        In any W rounds at most lam workers are late, each within B rounds that
        follow each other; B divides ``W - 1``.
    inner : type
        Class of the code, for n workers of which s may be late.

    Attributes
    ----------
    code : GradientCode
        The inner code.
    s : int
        How many late workers it tolerates.

    Raises
    ------
    UsageError
        If n < 1, B < 1, B > W, B does not divide ``W - 1``, or lam is outside of
        0 to n; or if ``s == n``, where ``lam == n`` and n or W is 1.
    """

    def __init__(
        self, n: int, B: int, W: int, lam: int, inner: type[GradientCode] = Repetition
    ) -> None:
        self._begin("SRSGC", n, B, W, lam)
        if self.B > self.W or (self.W - 1) % self.B:
            problem = f"B is {self.B}, W is {self.W}"
            raise UsageError("SRSGC", problem, "let B divide W - 1: W = B + 1, 2 B + 1, ...")
        self.s = -(-self.lam * self.B // (self.W - 1 + self.B))
        if self.s >= self.n:
            problem = f"lam is {self.lam}: no worker of {self.n} may be counted on"
            raise UsageError("SRSGC", problem, "give a smaller lam")
        self.code = inner_code("SRSGC", inner, self.n, self.s)
        self.delay, self.load, self.parts = self.B, self.code.load, self.code.parts
        rows = [self.code.assignment(worker) for worker in range(self.n)]
        self._rows = [
            (parts, tuple(self.code.matrix[worker, list(parts)].tolist()))
            for worker, parts in enumerate(rows)
        ]
        self._most_repeaters = self._most()
        self._repeaters: list[int] = []

    def for_workers(self, n: int) -> SRSGC:
        """Give the scheme for another number of workers; no job is open.

        Lam is lowered until at least one worker may be counted on: a worker
        alone would repeat for ever, and be late again some day.
        """
        most = min(n, (n - 1) * (self.W - 1 + self.B) // self.B)
        return SRSGC(n, self.B, self.W, min(self.lam, most), type(self.code))

    def _most(self) -> int:
        """Give how many workers repeat at most in a round under the model."""
        if not isinstance(self.code, GroupCode):
            return max(0, self.lam - self.s)
        groups = [self.code.group(worker) for worker in range(self.n)]
        sizes = sorted(groups.count(group) for group in range(self.code.n_groups))
        return sum(total <= self.lam for total in accumulate(sizes))

    def _missing(self, there: Workers) -> list[int]:
        """Choose the workers that repeat if these have delivered in the first round."""
        if isinstance(self.code, GroupCode):
            empty = set(range(self.code.n_groups))
            empty -= {self.code.group(worker) for worker in np.flatnonzero(there).tolist()}
            first = {self.code.group(worker): worker for worker in reversed(range(self.n))}
            return sorted(first[group] for group in empty)
        absent: list[int] = np.flatnonzero(~there).tolist()
        return absent[: max(0, self.n - self.s - int(there.sum()))]

    def _open(self) -> _Job:
        return {}

    def _assign(self, round: int) -> list[tuple[CodedTask, ...]]:
        due = self._jobs.get(round - self.B)
        self._repeaters = [] if due is None else self._missing(self._mask(due))
        fresh = round in self._jobs
        tasks: list[tuple[CodedTask, ...]] = [
            (CodedTask(round, 0, parts, factors),) if fresh else () for parts, factors in self._rows
        ]
        for worker in self._repeaters:
            tasks[worker] = (CodedTask(round - self.B, 0, *self._rows[worker]),)
        return tasks

    def _mask(self, workers: Collection[int]) -> Workers:
        mask = np.zeros(self.n, np.bool_)
        mask[list(workers)] = True
        return mask

    def _conditions(self, round: int) -> list[RoundLimit]:
        repeaters = self._mask(self._repeaters)
        limits = []
        due = self._jobs.get(round - self.B)
        if due is not None:
            limits.append(RoundLimit(round - self.B, self._mask(due), repeaters, self._decodable))
        if round in self._jobs:
            nobody = np.zeros(self.n, np.bool_)
            # Not fewer than there will be if all others finish.
            most = max(self._most_repeaters, len(self._missing(~repeaters)))
            few = partial(self._few_repeat, most)
            limits.append(RoundLimit(round, nobody, ~repeaters, few))
            limits.append(RoundLimit(round, repeaters, ~repeaters, _somebody))
        return limits

    def _decodable(self, there: Workers) -> bool:
        return self.code.decodable(there)

    def _few_repeat(self, most: int, there: Workers) -> bool:
        return len(self._missing(there)) <= most

    def _counts_as_late(self, late: frozenset[int]) -> frozenset[int]:
        """Leave out rounds that add no backlog: the authors' exemption."""
        exempt = not self._repeaters and len(late) <= self.s
        return frozenset() if exempt else late

    def _note(self, job: _Job, round: int, worker: int, task: CodedTask) -> None:  # noqa: ARG002
        job[worker] = round

    def _whole(self, job: _Job) -> bool:
        return self.code.decodable(job)

    def _terms(self, job: _Job) -> list[SumTerm]:
        weights = self.code.decode(job).tolist()
        return [SumTerm(round, who, 0, weights[who]) for who, round in job.items() if weights[who]]


def _somebody(there: Workers) -> bool:
    return bool(there.any())
