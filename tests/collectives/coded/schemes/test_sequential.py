"""M-SGC and SR-SGC: loads, tasks, whom a round waits for, and what is kept."""

from __future__ import annotations

import pickle
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from closeranks.collectives.coded import (
    MSGC,
    SRSGC,
    CyclicRepetition,
    FractionalRepetition,
    GradientCode,
    Repetition,
    Scheme,
)
from closeranks.errors import CodeError, UsageError
from tests.collectives.coded.schemes.patterns import Late, Run, bursty

INNER = pytest.mark.parametrize("inner", [Repetition, CyclicRepetition])
NOBODY: Late = frozenset()
#: Loads of coding.md 2.6 and of the published runs.
LOADS: list[tuple[Scheme, float]] = [
    (MSGC(256, 1, 2, 27, CyclicRepetition), 0.007543103448275862),
    (MSGC(256, 1, 2, 27), 2 / (256 + 9)),
    (SRSGC(256, 2, 3, 23, CyclicRepetition), 0.05078125),
    (SRSGC(256, 2, 3, 23), 1 / 19),
    (MSGC(4, 2, 3, 4, CyclicRepetition), 0.5),
    (MSGC(4, 2, 3, 4), 0.5),
    (MSGC(3, 1, 2, 1, CyclicRepetition), 4 / 9),
    (MSGC(6, 2, 4, 0), 1 / 6),
]
_NAMES = [f"{type(one).__name__}-{one.n}-{one.parts}" for one, _ in LOADS]


@pytest.mark.parametrize(("scheme", "load"), LOADS, ids=_NAMES)
def test_load_is_the_formula_and_what_the_tasks_count(scheme: Scheme, load: float) -> None:
    assert scheme.load == pytest.approx(load, abs=1e-12)
    run = Run(scheme.copy(), scheme.delay + 3)
    largest = 0
    # Without codes the last tasks are for those that were late.
    late = frozenset(range(scheme.n)) if getattr(scheme, "code", None) is None else NOBODY
    for _ in range(scheme.delay + 2):
        counts = [sum(len(t.parts) for t in mine) for mine in run.scheme.tasks(run.round)]
        largest = max(largest, *counts)
        run.end_round(late if run.round <= scheme.B else NOBODY)  # type: ignore[attr-defined]
    assert largest / scheme.parts == pytest.approx(load, abs=1e-12)


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize(("B", "W"), [(1, 2), (1, 4), (2, 3), (3, 4)])
@pytest.mark.parametrize("inner", [Repetition, CyclicRepetition])
def test_loads_of_msgc(n: int, B: int, W: int, inner: type[GradientCode]) -> None:
    for lam in range(n + 1):
        scheme = MSGC(n, B, W, lam, inner)
        least = (W - 1 + B) / (n * (W - 1) + (n - lam) * B)
        if lam == n:
            expected = (W - 1 + B) / (n * (W - 1))
        elif inner is CyclicRepetition:
            expected = (W - 1 + B) * (lam + 1) / (n * (B + (W - 1) * (lam + 1)))
        else:
            expected = (W - 1 + B) / (n * (W - 1) + B * (n // (lam + 1)))
        assert scheme.load == pytest.approx(expected, abs=1e-12)
        assert scheme.load >= least - 1e-12
        if lam >= n - 1:
            assert scheme.load == pytest.approx(least, abs=1e-12)
        assert scheme.delay == W - 2 + B


@pytest.mark.parametrize(
    ("B", "W", "lam", "s"),
    [(1, 2, 3, 2), (1, 3, 4, 2), (2, 3, 23, 12), (4, 9, 22, 8), (1, 1, 2, 2)],
)
def test_late_workers_that_the_code_of_srsgc_tolerates(B: int, W: int, lam: int, s: int) -> None:
    scheme = SRSGC(32, B, W, lam, CyclicRepetition)
    assert (scheme.s, scheme.delay, scheme.load) == (s, B, (s + 1) / 32)


@INNER
def test_a_round_has_one_task_of_each_open_job(inner: type[GradientCode]) -> None:
    """The oldest first; the slot is the place in the list."""
    run = Run(MSGC(4, 2, 4, 1, inner), 9)
    for round in range(1, 8):
        for mine in run.scheme.tasks(round):
            assert [task.job for task in mine] == list(range(max(1, round - 4), round + 1))
            assert [task.slot for task in mine] == list(range(len(mine)))
            assert len({len(task.parts) for task in mine}) == 1
        run.end_round(NOBODY)


def test_msgc_puts_a_group_of_codes_into_its_slot() -> None:
    """A worker that was late does a chunk where others do the vector of group 0."""
    run = Run(MSGC(4, 2, 3, 1), 1)
    first = [mine[0].parts for mine in run.scheme.tasks(1)]
    assert first == [(0,), (2,), (4,), (6,)]
    run.end_round(frozenset({1}))
    assert [mine[0].parts for mine in run.scheme.tasks(2)] == [(1,), (2,), (5,), (7,)]
    run.end_round(NOBODY)
    assert [mine[0].parts for mine in run.scheme.tasks(3)] == [(8,), (3,), (9,), (9,)]
    run.end_round(NOBODY)
    assert [mine[0].parts for mine in run.scheme.tasks(4)] == [(10,), (10,), (11,), (11,)]
    assert not run.scheme.decodable(1)
    run.end_round(NOBODY)
    assert run.error(1) < 1e-12


def test_msgc_without_codes_has_no_task_for_who_needs_none() -> None:
    run = Run(MSGC(2, 1, 2, 2), 1)
    run.end_round(frozenset({1}))
    assert [len(mine) for mine in run.scheme.tasks(2)] == [0, 1]
    assert run.scheme.must_wait(2, set()) == {1}
    assert run.scheme.may_end(2, {1})


def test_srsgc_repeats_as_many_tasks_as_a_job_lacks() -> None:
    """With groups, one of each group without a result."""
    late = frozenset({0, 1, 2})
    for inner, expected in ((CyclicRepetition, [1, 2, 2, 2]), (Repetition, [2, 2, 2, 2])):
        scheme = SRSGC(4, 1, 2, 4, inner)
        assert scheme.s == 2
        run = Run(scheme, 3)
        run.end_round(late)
        assert [mine[0].job for mine in run.scheme.tasks(2)] == expected
    run = Run(SRSGC(6, 1, 2, 4), 3)
    run.end_round(frozenset({0, 1, 2, 4}))
    assert [mine[0].job for mine in run.scheme.tasks(2)] == [1, 2, 2, 2, 2, 2]


SCHEMES = [
    MSGC(4, 1, 2, 2), MSGC(5, 1, 3, 2, CyclicRepetition), MSGC(4, 2, 3, 3, CyclicRepetition),
    MSGC(5, 2, 3, 2), MSGC(3, 1, 2, 3), MSGC(6, 2, 4, 2, FractionalRepetition),
    SRSGC(4, 1, 2, 2), SRSGC(5, 1, 3, 4, CyclicRepetition), SRSGC(6, 2, 3, 4),
    SRSGC(6, 2, 5, 5, CyclicRepetition), SRSGC(4, 1, 2, 4, CyclicRepetition),
]  # fmt: skip


@given(st.data())
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda one: f"{type(one).__name__}-{one.n}")
def test_whoever_is_late_all_jobs_decode_if_rounds_wait(scheme: Scheme, data: Any) -> None:
    """Whom a round waits for is enough, and none of them can be left out."""
    run = Run(scheme.copy(), 8)
    n = scheme.n
    for round in range(1, run.rounds + 1):
        finished = data.draw(st.frozensets(st.integers(0, n - 1)))
        waits = run.scheme.must_wait(round, finished)
        assert not waits & finished
        assert run.scheme.may_end(round, finished) == (not waits)
        assert run.scheme.must_wait(round, finished | waits) == set()
        for one in waits:
            assert run.scheme.must_wait(round, (finished | waits) - {one})
        late = frozenset(range(n)) - finished - waits
        parts = {w: data.draw(st.integers(0, 3)) for w in late}
        done = {w: min(parts[w], len(run.scheme.tasks(round)[w]) - 1) for w in late}
        run.end_round(late, {w: max(0, k) for w, k in done.items()})
        if round > scheme.delay:
            assert run.error(round - scheme.delay) < 1e-8


def test_a_job_that_is_lost_is_not_waited_for() -> None:
    run = Run(MSGC(4, 1, 2, 1, CyclicRepetition), 4)
    run.end_round(frozenset({0, 1}))  # too many for the coded slot of job 1
    assert run.scheme.must_wait(2, {1, 2, 3}) == set()
    run.end_round(frozenset({0}))
    assert not run.scheme.decodable(1)
    run.end_round(NOBODY)
    assert run.error(2) < 1e-9


@given(st.data())
@pytest.mark.parametrize(("n", "B", "W", "lam"), [(4, 1, 2, 2), (4, 2, 3, 3), (5, 2, 5, 4)])
def test_the_authors_rule_of_msgc(n: int, B: int, W: int, lam: int, data: Any) -> None:
    """What they drop is late; where they wait for all, nobody is."""
    scheme = MSGC(n, B, W, lam)
    pattern: list[Late] = []
    for round in range(1, 9):
        late = data.draw(st.frozensets(st.integers(0, n - 1), max_size=3))
        admitted = bursty(B, W, lam)([*pattern, late])
        assert scheme.conforms(round, set(late)) == admitted
        pattern.append(late if admitted else NOBODY)
        given_out = scheme.tasks(round)
        for worker in range(n):
            scheme.deliver(round, worker, () if worker in pattern[-1] else given_out[worker])


@given(st.data())
@pytest.mark.parametrize(("n", "B", "W", "lam"), [(4, 1, 2, 2), (5, 2, 3, 4), (5, 1, 3, 4)])
def test_the_authors_rule_of_srsgc(n: int, B: int, W: int, lam: int, data: Any) -> None:
    """Past rounds in which nobody repeated and at most s were late do not count."""
    scheme = SRSGC(n, B, W, lam, CyclicRepetition)
    counted: list[Late] = []
    for round in range(1, 9):
        late = data.draw(st.frozensets(st.integers(0, n - 1), max_size=3))
        admitted = bursty(B, W, lam)([*counted, late])
        assert scheme.conforms(round, late) == admitted
        late = late if admitted else NOBODY
        given_out = scheme.tasks(round)
        repeats = any(task.job < round for mine in given_out for task in mine)
        counted.append(late if repeats or len(late) > scheme.s else NOBODY)
        for worker in range(n):
            scheme.deliver(round, worker, () if worker in late else given_out[worker])
        if round > B:
            scheme.decode(round - B)


def test_a_round_in_which_somebody_repeated_counts() -> None:
    """However few were late in it: the job that they lack adds to the backlog."""
    run = Run(SRSGC(5, 1, 3, 4, CyclicRepetition), 4)
    run.end_round(frozenset({0, 1, 2}))
    assert [mine[0].job for mine in run.scheme.tasks(2)] == [1, 2, 2, 2, 2]
    run.end_round(frozenset({3}))
    assert run.scheme.conforms(3, set())  # type: ignore[attr-defined]
    assert not run.scheme.conforms(3, {4})  # type: ignore[attr-defined]


@pytest.mark.parametrize("scheme", [MSGC(4, 2, 3, 2, CyclicRepetition), SRSGC(4, 2, 3, 2)])
def test_what_is_kept_does_not_grow(scheme: Scheme) -> None:
    random = np.random.default_rng(5)
    sizes = []
    for round in range(1, 1201):
        given_out = scheme.tasks(round)
        finished = {w for w in range(4) if random.random() < 0.7}
        finished |= scheme.must_wait(round, finished)
        for worker in range(4):
            scheme.deliver(round, worker, given_out[worker] if worker in finished else ())
        if round > scheme.delay:
            assert scheme.decode(round - scheme.delay) == scheme.decode(round - scheme.delay)
        if round % 200 == 0:
            sizes.append(len(pickle.dumps(scheme)))
    assert max(sizes[1:]) < 1.1 * max(sizes[:1]) + 500


@INNER
def test_a_job_that_was_decoded_is_forgotten_later(inner: type[GradientCode]) -> None:
    for scheme in (MSGC(3, 1, 2, 1, inner), SRSGC(3, 1, 2, 1, inner)):
        run = Run(scheme, 5)
        for _ in range(2):
            run.end_round(NOBODY)
        assert run.error(1) == run.error(1)
        run.end_round(NOBODY)
        with pytest.raises(CodeError, match="job 1 is not decodable: it is not open"):
            run.scheme.decode(1)
        run.scheme.forget(2)
        assert not run.scheme.decodable(2)
        run.scheme.forget(3)
        run.end_round(NOBODY)
        assert run.scheme.must_wait(5, set()) != set()
        run.end_round(NOBODY)
        assert run.error(4) < 1e-9


@INNER
def test_too_early_is_an_error(inner: type[GradientCode]) -> None:
    run = Run(MSGC(3, 1, 2, 1, inner), 5)
    for job in (0, 1, 9):
        with pytest.raises(CodeError, match=f"job {job} is not decodable"):
            run.scheme.decode(job)
    run.end_round(NOBODY)
    with pytest.raises(CodeError, match="job 1 is not decodable before round 2"):
        run.scheme.decode(1)


@pytest.mark.parametrize("make", [lambda: MSGC(4, 1, 2, 1), lambda: SRSGC(4, 1, 2, 1)])
def test_deliveries_that_cannot_be(make: Any) -> None:
    """A result of another round is none of this one."""
    scheme = make()
    with pytest.raises(UsageError, match="round is 2, round 1 is at hand"):
        scheme.tasks(2)
    first = scheme.tasks(1)
    scheme.deliver(1, 0, first[0])
    with pytest.raises(UsageError, match="worker 0 was told for round 1 before"):
        scheme.deliver(1, 0, first[0])
    with pytest.raises(UsageError, match="worker is 4"):
        scheme.deliver(1, 4, ())
    with pytest.raises(UsageError, match="worker 1 has no CodedTask"):
        scheme.deliver(1, 1, first[2])
    with pytest.raises(UsageError, match="round is 2"):
        scheme.deliver(2, 1, first[1])
    for worker in (1, 2, 3):
        scheme.deliver(1, worker, first[worker])
    with pytest.raises(UsageError, match="round is 1, round 2 is at hand"):
        scheme.deliver(1, 0, first[0])
    scheme.tasks(2)
    with pytest.raises(UsageError, match="worker 0 has no CodedTask"):
        scheme.deliver(2, 0, first[0])
    for job in (1, 2):
        with pytest.raises(UsageError, match=f"job {job} has begun"):
            scheme.skip(job)
    with pytest.raises(UsageError, match="a worker is 4"):
        scheme.must_wait(2, {4})
    with pytest.raises(UsageError, match="a worker is -1"):
        scheme.conforms(2, {-1})


def _expander(n: int, d: int) -> GradientCode:
    return Repetition(n, d)


class _Estimate(GradientCode):
    def __init__(self, n: int, s: int) -> None:
        self.n, self.s = n, s
        super().__init__(np.eye(n, n - s), exact=False)

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return bool(finished)

    def _solve(self, _finished: frozenset[int]) -> NDArray[np.float64]:
        return np.zeros(self.n)


@pytest.mark.parametrize(
    ("scheme", "arguments", "problem"),
    [
        (MSGC, (0, 1, 2, 0), "MSGC: n is 0"),
        (MSGC, (4, 0, 2, 1), "MSGC: B is 0"),
        (MSGC, (4, 2, 2, 1), "MSGC: B is 2, W is 2; let B be below W"),
        (MSGC, (4, 1, 1, 1), "MSGC: B is 1, W is 1"),
        (MSGC, (4, 1, 2, 5), "MSGC: lam is 5"),
        (MSGC, (4, 1, 2, -1), "MSGC: lam is -1"),
        (MSGC, (4, 1.5, 2, 1), "MSGC: B is 1.5"),
        (MSGC, (4, 1, 2, 1, "Repetition"), "MSGC: inner is 'Repetition'"),
        (MSGC, (4, 1, 2, 4, "Repetition"), "MSGC: inner is 'Repetition'"),
        (MSGC, (4, 1, 2, 1, _expander), "MSGC: inner is <function"),
        (MSGC, (4, 1, 2, 1, dict), "MSGC: inner is <class 'dict'>"),
        (MSGC, (4, 1, 2, 1, _Estimate), "MSGC: _Estimate gives estimates"),
        (MSGC, (4, 1, 2, 2, FractionalRepetition), "does not divide"),
        (SRSGC, (0, 1, 2, 0), "SRSGC: n is 0"),
        (SRSGC, (4, 2, 4, 1), "SRSGC: B is 2, W is 4; let B divide W - 1"),
        (SRSGC, (4, 2, 1, 1), "SRSGC: B is 2, W is 1"),
        (SRSGC, (4, 1, 2, 5), "SRSGC: lam is 5"),
        (SRSGC, (4, 1, 2, 2, GradientCode), "SRSGC"),
        (SRSGC, (4, 1, 1, 4), "lam is 4"),
        (SRSGC, (1, 1, 2, 1), "lam is 1"),
    ],
)
def test_bad_parameters(scheme: Any, arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        scheme(*arguments)
    assert problem in str(raised.value)


def test_the_most_groups_that_repeat_under_the_model() -> None:
    """As many as lam workers can be all members of."""
    for n in range(2, 12):
        for lam in range(n + 1):
            scheme = SRSGC(n, 1, 2, lam)
            sizes = sorted(np.bincount([i * (n // (scheme.s + 1)) // n for i in range(n)]))
            assert scheme._most_repeaters == sum(t <= lam for t in accumulate(sizes))
