"""M-SGC and SR-SGC decode under every admissible pattern of late workers, in values."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from closeranks.collectives.coded import (
    MSGC,
    SRSGC,
    CyclicRepetition,
    GradientCode,
    GradientCoding,
    Repetition,
    Scheme,
)
from tests.collectives.coded.schemes.patterns import (
    Admits,
    Run,
    arbitrary,
    bursty,
    explore,
    lost,
    per_round,
    sets_of,
)

Inner = type[GradientCode]
INNER = pytest.mark.parametrize("inner", [Repetition, CyclicRepetition])
#: n, B, W, lam, jobs, and how many patterns there are; so the authors' program counted.
M_BURSTY = [
    (3, 1, 2, 1, 4, 97),
    (3, 1, 2, 2, 4, 1015),
    (3, 1, 2, 3, 4, 2197),
    (3, 2, 3, 2, 3, 3571),
]
SR_BURSTY = (3, 1, 2, 2, 5, 3655)
LARGE: list[tuple[Callable[..., Scheme], tuple[int, ...], Admits, int, int]] = [
    (MSGC, (4, 2, 3, 3), bursty(2, 3, 3), 2, 21519),
    (MSGC, (4, 2, 3, 3), arbitrary(2, 4, 3), 2, 28815),
    (SRSGC, (4, 1, 2, 4), bursty(1, 2, 4), 4, 28561),
]
#: Others, without a count.
M_MORE = [
    (2, 1, 2, 1, 6), (3, 1, 3, 2, 4), (3, 1, 4, 3, 3), (3, 2, 4, 2, 3), (4, 1, 2, 2, 4),
    (4, 1, 3, 3, 2), (4, 3, 4, 1, 2), (5, 1, 2, 3, 2), (5, 1, 3, 2, 2), (5, 2, 3, 1, 3),
]  # fmt: skip
SR_MORE = [
    (2, 1, 2, 2, 6), (3, 1, 3, 2, 5), (3, 2, 3, 3, 3), (3, 1, 1, 1, 4), (3, 2, 5, 3, 5),
    (4, 1, 3, 4, 4), (4, 1, 4, 3, 4), (4, 2, 3, 2, 3), (5, 1, 2, 3, 3), (5, 1, 3, 4, 3),
]  # fmt: skip


def _count(scheme: Scheme, jobs: int, admits: Admits) -> int:
    return sum(1 for _ in explore(Run(scheme, jobs), admits))


@INNER
@pytest.mark.parametrize(("n", "B", "W", "lam", "jobs", "count"), M_BURSTY)
def test_msgc(n: int, B: int, W: int, lam: int, jobs: int, count: int, inner: Inner) -> None:
    assert _count(MSGC(n, B, W, lam, inner), jobs, bursty(B, W, lam)) == count


@INNER
def test_msgc_with_late_rounds_anywhere_in_the_window(inner: Inner) -> None:
    assert _count(MSGC(3, 2, 3, 2, inner), 3, arbitrary(2, 4, 2)) == 4087


@INNER
def test_srsgc(inner: Inner) -> None:
    n, B, W, lam, jobs, count = SR_BURSTY
    assert _count(SRSGC(n, B, W, lam, inner), jobs, bursty(B, W, lam)) == count


@INNER
@pytest.mark.share(6)
@pytest.mark.parametrize(("scheme", "arguments", "admits", "jobs", "count"), LARGE)
def test_four_workers(
    scheme: Callable[..., Scheme], arguments: tuple[int, ...], admits: Admits, jobs: int,
    count: int, inner: Inner,
) -> None:  # fmt: skip
    assert _count(scheme(*arguments, inner), jobs, admits) == count


@INNER
@pytest.mark.parametrize(("n", "B", "W", "lam", "jobs"), [(3, 1, 2, 2, 5), (4, 1, 3, 3, 4)])
def test_srsgc_with_s_late_workers_in_every_round(
    n: int, B: int, W: int, lam: int, jobs: int, inner: Inner
) -> None:
    scheme = SRSGC(n, B, W, lam, inner)
    assert scheme.s == 1
    assert _count(scheme, jobs, per_round(1)) == (n + 1) ** (jobs + B)


@INNER
@pytest.mark.share(5)
@pytest.mark.parametrize(("n", "B", "W", "lam", "jobs"), M_MORE)
def test_msgc_with_more_parameters(
    n: int, B: int, W: int, lam: int, jobs: int, inner: Inner
) -> None:
    for admits in (bursty(B, W, lam), arbitrary(B, W - 1 + B, lam)):
        assert _count(MSGC(n, B, W, lam, inner), jobs, admits) > 100


@INNER
@pytest.mark.share(5)
@pytest.mark.parametrize(("n", "B", "W", "lam", "jobs"), SR_MORE)
def test_srsgc_with_more_parameters(
    n: int, B: int, W: int, lam: int, jobs: int, inner: Inner
) -> None:
    assert _count(SRSGC(n, B, W, lam, inner), jobs, bursty(B, W, lam)) > 100


@INNER
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_gradient_coding(n: int, inner: Callable[[int, int], GradientCode]) -> None:
    for s in range(n):
        assert _count(GradientCoding.of(inner(n, s)), 1, per_round(s)) == sum(
            len(late) <= s for late in sets_of(n)
        )


@INNER
def test_msgc_loses_a_job_when_too_many_are_late_in_a_coded_slot(inner: Inner) -> None:
    """One more than lam; with repetition, only if that is a whole group."""
    nobody: frozenset[int] = frozenset()
    for late in combinations(range(4), 2):
        run = Run(MSGC(4, 1, 2, 1, inner), 3)
        expected = inner is CyclicRepetition or late in {(0, 1), (2, 3)}
        assert lost(run, [nobody, nobody, frozenset(late)], 2) == expected
        assert run.error(1) < 1e-9


@INNER
@pytest.mark.parametrize("lam", [2, 3])
def test_msgc_loses_a_job_when_a_worker_is_late_in_too_many_slots(inner: Inner, lam: int) -> None:
    """Job 2 has four slots, in rounds 2 to 5; its chunks need two of them."""
    for rounds in combinations(range(2, 6), 3):
        for times in (rounds, rounds[1:]):
            pattern = [frozenset({1} if r in times else ()) for r in range(1, 6)]
            assert lost(Run(MSGC(3, 2, 3, lam, inner), 3), pattern, 2) == (times == rounds)


@INNER
def test_srsgc_loses_a_job_when_a_worker_is_late_with_what_it_repeats(inner: Inner) -> None:
    """In round 1 one worker too many is late; the first of them repeats in round 2."""
    late = frozenset({0, 1})
    for again in range(4):
        run = Run(SRSGC(4, 1, 2, 2, inner), 2)
        assert lost(run, [late, frozenset({again})], 1) == (again == 0)


@INNER
def test_a_pattern_that_loses_a_job_is_waited_out(inner: Inner) -> None:
    run = Run(MSGC(4, 1, 2, 1, inner), 3)
    assert run.scheme.must_wait(1, {2, 3}) == {0}
    run = Run(SRSGC(4, 1, 2, 2, inner), 2)
    run.end_round(frozenset({0, 1}))
    assert run.scheme.must_wait(2, {1, 2, 3}) == {0}
