"""Patterns of late workers, and schemes that are run through all of them, in values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np

from closeranks.collectives.coded import Scheme
from closeranks.collectives.coded.schemes.task import CodedTask
from closeranks.errors import CodeError

Late = frozenset[int]
#: Of a pattern whose earlier rounds are admissible: whether it is with its last one.
Admits = Callable[[Sequence[Late]], bool]


def bursty(B: int, W: int, lam: int) -> Admits:
    """Any W rounds: at most lam workers are late, each within B rounds."""

    def admits(pattern: Sequence[Late]) -> bool:
        window = pattern[-W:]
        who = frozenset().union(*window)
        rounds = {w: [r for r, late in enumerate(window) if w in late] for w in who}
        return len(who) <= lam and all(rs[-1] - rs[0] < B for rs in rounds.values())

    return admits


def arbitrary(N: int, W: int, lam: int) -> Admits:
    """Any W rounds: at most lam workers are late, each in at most N of them."""

    def admits(pattern: Sequence[Late]) -> bool:
        window = pattern[-W:]
        who = frozenset().union(*window)
        return len(who) <= lam and all(sum(w in late for late in window) <= N for w in who)

    return admits


def per_round(s: int) -> Admits:
    return lambda pattern: len(pattern[-1]) <= s


def sets_of(n: int) -> list[Late]:
    """All sets of workers."""
    return [frozenset(some) for k in range(n + 1) for some in combinations(range(n), k)]


class Run:
    """A scheme on its way, with the vectors that were delivered.

    Parameters
    ----------
    scheme : Scheme
        Told nothing yet.
    jobs : int
        How many there are; those after them are skipped.
    seed : int, optional
        Of the gradients: one number a job and part.
    """

    def __init__(self, scheme: Scheme, jobs: int, seed: int = 1) -> None:
        self.scheme, self.jobs = scheme, jobs
        self.rounds = jobs + scheme.delay
        shape = (jobs + 1, scheme.parts)
        self.gradients: list[list[float]] = (
            np.random.default_rng(seed).standard_normal(shape).tolist()
        )
        self.sums: list[float] = [sum(one) for one in self.gradients]
        self.vectors: dict[tuple[int, int, int], float] = {}
        self.round = 1
        for job in range(jobs + 1, self.rounds + 1):
            scheme.skip(job)

    def copy(self) -> Run:
        other = Run.__new__(Run)
        other.__dict__ |= self.__dict__
        other.scheme, other.vectors = self.scheme.copy(), dict(self.vectors)
        return other

    def vector(self, task: CodedTask) -> float:
        mine = self.gradients[task.job]
        return sum(c * mine[p] for c, p in zip(task.coefficients, task.parts, strict=True))

    def end_round(self, late: Late, finished: dict[int, int] | None = None) -> None:
        """Tell a round: who is late delivers nothing, or so many tasks."""
        given = self.scheme.tasks(self.round)
        for worker, tasks in enumerate(given):
            done = (finished or {}).get(worker, 0) if worker in late else len(tasks)
            for task in tasks[:done]:
                self.vectors[self.round, worker, task.slot] = self.vector(task)
            self.scheme.deliver(self.round, worker, tasks[:done])
        self.round += 1

    def error(self, job: int) -> float:
        """Decode a job; what was not delivered raises KeyError."""
        terms = self.scheme.decode(job)
        total = sum(one.weight * self.vectors[one[:3]] for one in terms)
        return abs(total - self.sums[job])


def explore(run: Run, admits: Admits, pattern: tuple[Late, ...] = ()) -> Iterator[tuple[Late, ...]]:
    """Run a scheme through all admissible patterns and check each job when it is due.

    No round may ask to wait for more than the pattern delivers, if that is
    anything.
    """
    if run.round > run.rounds:
        yield pattern
        return
    n = run.scheme.n
    everybody = frozenset(range(n))
    for late in sets_of(n):
        longer = (*pattern, late)
        if not admits(longer):
            continue
        assert late == everybody or run.scheme.may_end(run.round, everybody - late), longer
        branch = run.copy()
        branch.end_round(late)
        due = branch.round - 1 - run.scheme.delay
        if due >= 1:
            assert branch.error(due) < 1e-9, longer
        yield from explore(branch, admits, longer)


def lost(run: Run, pattern: Sequence[Late], job: int) -> bool:
    """Tell whether a job cannot be decoded when it is due after a pattern."""
    for late in pattern[: job + run.scheme.delay]:
        run.end_round(late)
    try:
        assert run.error(job) < 1e-9
    except CodeError:
        return not run.scheme.decodable(job)
    return False
