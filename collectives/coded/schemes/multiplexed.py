"""M-SGC: most parts are computed once, again if lost; the others are coded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.repetition import Repetition
from closeranks.collectives.coded.schemes.round_limit import RoundLimit, Workers
from closeranks.collectives.coded.schemes.sequential import Sequential, inner_code
from closeranks.collectives.coded.schemes.task import CodedTask, SumTerm
from closeranks.errors import UsageError


class _Job:
    """What was delivered for a job.

    Attributes
    ----------
    left : ndarray of int64, shape (n,)
        Worker -> how many of its chunks lack.
    chunks : list of int
        Worker -> bits of the chunks that lack.
    terms : list of SumTerm
        The chunks that are there.
    coded : list of dict
        Coded group -> worker -> round and slot of its vector.
    """

    def __init__(self, n: int, chunks: int, groups: int) -> None:
        self.left = np.full(n, chunks)
        self.chunks = [(1 << chunks) - 1] * n
        self.terms: list[SumTerm] = []
        self.coded: list[dict[int, tuple[int, int]]] = [{} for _ in range(groups)]

    def copy(self) -> _Job:
        """Give the same deliveries, to which others may be added."""
        other = _Job.__new__(_Job)
        other.left, other.chunks = self.left.copy(), list(self.chunks)
        other.terms, other.coded = list(self.terms), [dict(group) for group in self.coded]
        return other


class MSGC(Sequential[_Job]):
    """Multiplexed sequential gradient coding.

    The parts of a job are ``n (W - 1)`` chunks, ``W - 1`` for each worker, and B
    groups of parts, each with an (n, lam) gradient code.  A worker computes one
    task of a job in each of ``W - 1 + B`` rounds: in the first ``W - 1`` its
    chunks; then, in round ``W - 1 + q``, its vector of group q, but if it lacks
    chunks, one of these.  All tasks are of one size.  With ``lam == n`` there
    are no groups: the last B rounds are for chunks that were lost.

    It tolerates all (B, W, lam)-bursty patterns of late workers, and all in
    which any ``W - 1 + B`` rounds have at most lam late workers, each of them
    late in at most B of these rounds.

    Krishnan, Ebrahimi, Khisti, "Sequential Gradient Coding for Straggler
    Mitigation", ICLR 2023.  Departures: the tasks of the oldest job come first;
    a late worker's tasks count as far as it has finished them; and a round may
    end, by `must_wait`, when somebody has finished, the job that is due can be
    decoded, and every other open job still can be if nobody is late again.
    That admits all patterns above, and more.  The authors' rule is `conforms`.

    Parameters
    ----------
    n : int
        Workers.
    B, W, lam : int
        In any W rounds at most lam workers are late, each within B rounds that
        follow each other; ``B < W``.
    inner : type
        Class of the code, for n workers of which lam may be late.

    Attributes
    ----------
    code : GradientCode or None
        The code of the groups; None if ``lam == n``.

    Raises
    ------
    UsageError
        If n < 1, B < 1, B >= W, or lam is outside of 0 to n.
    """

    def __init__(
        self, n: int, B: int, W: int, lam: int, inner: type[GradientCode] = Repetition
    ) -> None:
        self._begin("MSGC", n, B, W, lam)
        if self.B >= self.W:
            raise UsageError("MSGC", f"B is {self.B}, W is {self.W}", "let B be below W")
        self._chunks, self.delay = self.W - 1, self.W - 2 + self.B
        self.slots = self.delay + 1
        self._inner = inner
        self.code: GradientCode | None = None
        if self.lam < self.n:
            self.code = inner_code("MSGC", inner, self.n, self.lam)
        else:
            inner_code("MSGC", inner, self.n, 0)
        self._set_parts()
        self.load = (self.W - 1 + self.B) * self._size / self.parts

    def for_workers(self, n: int) -> MSGC:
        """Give the scheme for another number of workers; no job is open."""
        return MSGC(n, self.B, self.W, min(self.lam, n), self._inner)

    def _set_parts(self) -> None:
        """Give numbers to the parts: the chunks of each worker, then the groups."""
        code, chunks = self.code, self.n * self._chunks
        self._groups = 0 if code is None else self.B
        per_group = 0 if code is None else code.parts
        self._size = 1 if code is None else round(code.load * code.parts)
        self.parts = chunks * self._size + self._groups * per_group
        self._chunk_parts = [
            tuple(range(chunk * self._size, (chunk + 1) * self._size)) for chunk in range(chunks)
        ]
        self._ones = (1.0,) * self._size
        self._rows: list[list[tuple[tuple[int, ...], tuple[float, ...]]]] = []
        for group in range(self._groups):
            assert code is not None
            first = chunks * self._size + group * per_group
            mine = [code.assignment(worker) for worker in range(self.n)]
            self._rows.append(
                [
                    (tuple(first + j for j in js), tuple(code.matrix[worker, list(js)].tolist()))
                    for worker, js in enumerate(mine)
                ]
            )

    def _open(self) -> _Job:
        return _Job(self.n, self._chunks, self._groups)

    def _open_jobs(self, round: int) -> list[tuple[int, _Job]]:
        """Give the jobs with tasks in a round, oldest first."""
        numbers = range(max(1, round - self.delay), round + 1)
        return [(number, self._jobs[number]) for number in numbers if number in self._jobs]

    def _assign(self, round: int) -> list[tuple[CodedTask, ...]]:
        given: list[list[CodedTask]] = [[] for _ in range(self.n)]
        for number, job in self._open_jobs(round):
            group = round - number - self._chunks
            for worker, lacking in enumerate(job.chunks):
                mine = given[worker]
                if lacking:
                    chunk = worker * self._chunks + (lacking & -lacking).bit_length() - 1
                    mine.append(CodedTask(number, len(mine), self._chunk_parts[chunk], self._ones))
                elif 0 <= group < self._groups:
                    mine.append(CodedTask(number, len(mine), *self._rows[group][worker]))
        return [tuple(mine) for mine in given]

    def _note(self, job: _Job, round: int, worker: int, task: CodedTask) -> None:
        first = task.parts[0]
        chunk = first // self._size - worker * self._chunks
        if first < len(self._chunk_parts) * self._size:
            job.chunks[worker] &= ~(1 << chunk)
            job.left[worker] -= 1
            job.terms.append(SumTerm(round, worker, task.slot, 1.0))
        else:
            job.coded[round - task.job - self._chunks][worker] = (round, task.slot)

    def _conditions(self, round: int) -> list[RoundLimit]:
        limits = []
        for number, job in self._open_jobs(round):
            after, slot = number + self.delay - round, round - number
            # After this round a worker may lack as many chunks as rounds are left.
            limits.append(RoundLimit(number, job.left <= after, job.left == after + 1, _all))
            for group in range(self._groups):
                before = self._chunks + group - slot
                if before > 0:  # its slot comes; a worker's chunks must be there before
                    base, gain = job.left < before, job.left == before
                elif before == 0:
                    base, gain = np.zeros(self.n, np.bool_), job.left == 0
                else:
                    continue
                limits.append(RoundLimit(number, base, gain, self._decodable))
        nobody, tasks = np.zeros(self.n, np.bool_), self._tasks or []
        busy = np.array([bool(mine) for mine in tasks])
        limits.append(RoundLimit(0, nobody | ~busy, busy, _somebody))
        return limits

    def _decodable(self, there: Workers) -> bool:
        assert self.code is not None
        return bool(there.all()) or self.code.decodable(there)

    def _whole(self, job: _Job) -> bool:
        if job.left.any():
            return False
        return self.code is None or all(map(self.code.decodable, job.coded))

    def _terms(self, job: _Job) -> list[SumTerm]:
        terms = list(job.terms)
        for there in job.coded:
            assert self.code is not None
            weights: Sequence[float] = self.code.decode(there).tolist()
            terms += [
                SumTerm(r, w, slot, weights[w]) for w, (r, slot) in there.items() if weights[w]
            ]
        return terms


def _all(there: Workers) -> bool:
    return bool(there.all())


def _somebody(there: Workers) -> bool:
    return bool(there.any())
