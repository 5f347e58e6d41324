"""Schemes whose jobs take one round: sums in values, waits, shares, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.collectives.coded import (
    Backup,
    BalancedBlockDesign,
    CyclicRepetition,
    Expander,
    GradientCode,
    GradientCoding,
    Repetition,
    Scheme,
    Uncoded,
    UnequalShares,
)
from closeranks.errors import CodeError, UsageError
from tests.collectives.coded.schemes.patterns import Run, sets_of

NOBODY: frozenset[int] = frozenset()
#: Of each scheme the sets of late workers that it can do without, as a rule.
ALLOWED = [
    (Uncoded(1), lambda late: not late),
    (Uncoded(4), lambda late: not late),
    (GradientCoding(5, 1), lambda late: not {0, 1, 2} <= late and not {3, 4} <= late),
    (GradientCoding(4, 3), lambda late: len(late) < 4),
    (GradientCoding.of(CyclicRepetition(5, 2)), lambda late: len(late) <= 2),
    (GradientCoding.of(CyclicRepetition(4, 0)), lambda late: not late),
    (UnequalShares(3, [1, 2, 3]), lambda late: not late),
    (UnequalShares(4, [0, 2, 1, 0]), lambda late: not late & {1, 2}),
]


@pytest.mark.parametrize(
    ("scheme", "allowed"), ALLOWED, ids=[f"{type(one).__name__}-{one.n}" for one, _ in ALLOWED]
)
def test_sums_of_all_sets_of_late_workers(scheme: Scheme, allowed: Any) -> None:
    assert scheme.exact
    assert scheme.delay == 0
    everybody = frozenset(range(scheme.n))
    for late in sets_of(scheme.n):
        run = Run(scheme.copy(), 2)
        run.end_round(NOBODY)
        waits = run.scheme.must_wait(2, everybody - late)
        assert run.scheme.may_end(2, everybody - late) == (not waits) == allowed(late)
        assert waits <= late
        run.end_round(late)
        assert run.scheme.decodable(2) == allowed(late)
        if allowed(late):
            assert run.error(2) < 1e-9
        else:
            assert not run.scheme.must_wait(2, everybody - late | waits)
            with pytest.raises(CodeError, match="job 2 cannot be had from workers"):
                run.scheme.decode(2)
        assert run.error(1) < 1e-9


@pytest.mark.parametrize(("scheme", "_"), ALLOWED)
def test_load_counts_the_parts(scheme: Scheme, _: Any) -> None:
    counts = [sum(len(task.parts) for task in mine) for mine in scheme.tasks(7)]
    assert scheme.load == max(counts) / scheme.parts
    assert {task.job for mine in scheme.tasks(7) for task in mine} == {7}


def test_whoever_gives_what_is_there_is_not_waited_for() -> None:
    assert GradientCoding(5, 1).must_wait(1, {1}) == {3, 4}
    assert GradientCoding(5, 1).must_wait(1, set()) == {0, 1, 2, 3, 4}
    assert GradientCoding.of(CyclicRepetition(4, 2)).must_wait(1, {1}) == {0, 2, 3}


@pytest.mark.parametrize("inner", [Repetition, CyclicRepetition])
def test_the_rule_of_gradient_coding(inner: Any) -> None:
    """As many as s, not one fewer, though repetition could do with more."""
    scheme = GradientCoding.of(inner(6, 2))
    assert scheme.conforms(3, {4, 5})
    assert not scheme.conforms(3, {1, 3, 5})
    assert Uncoded(3).conforms(1, set())
    assert not Uncoded(3).conforms(1, {2})


class _Pairs(GradientCode):
    """Two workers, each with the whole batch; it names no s."""

    def __init__(self) -> None:
        super().__init__(np.ones((2, 1)), exact=False)

    def _has_sum(self, finished: frozenset[int]) -> bool:
        return bool(finished)

    def _solve(self, finished: frozenset[int]) -> Any:
        return np.array([float(w == min(finished)) for w in (0, 1)])


def test_any_code_makes_a_scheme() -> None:
    scheme = GradientCoding.of(_Pairs())
    assert not scheme.exact
    assert scheme.conforms(1, {0})
    assert not scheme.conforms(1, {0, 1})
    run = Run(scheme, 1)
    run.end_round(frozenset({0}))
    assert run.error(1) == 0
    with pytest.raises(UsageError, match=r"GradientCoding.of: code is 3"):
        GradientCoding.of(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("late", [set(), {3}, {0, 4}])
def test_backup_scales_the_sum_of_the_others(late: set[int]) -> None:
    scheme = Backup(5, 2)
    assert (scheme.exact, scheme.load, scheme.parts) == (False, 1 / 5, 5)
    run = Run(scheme, 1)
    run.end_round(frozenset(late))
    there = [worker for worker in range(5) if worker not in late]
    assert [term.worker for term in scheme.decode(1)] == there
    assert {term.weight for term in scheme.decode(1)} == {5 / len(there)}


def test_backup_waits_for_the_first_that_are_enough() -> None:
    scheme = Backup(5, 2)
    assert scheme.must_wait(1, {0, 4}) == {1, 2, 3}
    assert scheme.must_wait(1, {0, 2, 4}) == set()
    Run(scheme, 1).end_round(frozenset({0, 2, 4}))
    with pytest.raises(CodeError, match="job 1 cannot be had"):
        scheme.decode(1)


@pytest.mark.parametrize(
    ("speeds", "shares"),
    [
        ([1, 1, 1], (1, 1, 1)),
        ([0.5, 1, 1, 1], (1, 2, 2, 2)),
        ([3, 1], (3, 1)),
        ([1, 0, 2.0], (1, 0, 2)),
        ([1.01, 1, 0.99], (1, 1, 1)),
        ([1e-9, 1], (1, 16)),
        (np.array([2, 1], np.float32), (2, 1)),
    ],
)
def test_shares_are_in_proportion_to_speeds(speeds: Any, shares: tuple[int, ...]) -> None:
    scheme = UnequalShares(len(speeds), speeds)
    assert scheme.shares == shares
    assert scheme.parts == sum(shares)
    assert [sum(len(t.parts) for t in mine) for mine in scheme.tasks(1)] == list(shares)


@pytest.mark.filterwarnings("error")
def test_speeds_that_are_far_apart() -> None:
    assert UnequalShares(3, [1e-150, 1, 0]).shares == (1, 16, 0)
    assert UnequalShares(3, [1e-300] * 3).shares == UnequalShares(3, [1e300] * 3).shares
    with pytest.raises(UsageError, match=r"speeds are from 1e-300 to 1e\+300"):
        UnequalShares(3, [1, 1e300, 1e-300])


@given(st.lists(st.floats(0.1, 1), min_size=1, max_size=12))
def test_unequal_shares_are_as_fast_as_they_say(speeds: list[float]) -> None:
    """Speeds within a factor of ten: at most a tenth slower than in proportion."""
    scheme = UnequalShares(len(speeds), speeds)
    slowest = max(k / v for k, v in zip(scheme.shares, speeds, strict=True)) / scheme.parts
    assert min(scheme.shares) >= 1
    assert slowest <= 1.1 / sum(speeds)
    assert slowest <= max(1 / v for v in speeds) / len(speeds) + 1e-12


@pytest.mark.parametrize("scheme", [Uncoded(3), GradientCoding(4, 1), Backup(3, 1)])
def test_what_was_decoded_is_forgotten(scheme: Scheme) -> None:
    run = Run(scheme, 300)
    for job in range(1, 301):
        run.end_round(NOBODY)
        assert run.scheme.decode(job) == run.scheme.decode(job)
    assert len(run.scheme._delivered) <= 2  # type: ignore[attr-defined]
    assert len(run.scheme._decoded) <= 2  # type: ignore[attr-defined]
    run.scheme.forget(300)
    assert not run.scheme.decodable(300)


def test_a_copy_goes_its_own_way() -> None:
    one = Uncoded(2)
    other = one.copy()
    for worker, mine in enumerate(one.tasks(1)):
        one.deliver(1, worker, mine)
    assert one.decodable(1)
    assert not other.decodable(1)


@pytest.mark.parametrize("scheme", [Uncoded(3), GradientCoding(3, 1), Backup(3, 1)])
def test_a_result_of_another_round_is_refused(scheme: Scheme) -> None:
    with pytest.raises(UsageError, match="a task of round 1 in round 2"):
        scheme.deliver(2, 0, scheme.tasks(1)[0])
    with pytest.raises(UsageError, match="worker is 3"):
        scheme.deliver(2, 3, ())
    with pytest.raises(UsageError, match="a worker is 3"):
        scheme.must_wait(2, {3})


@pytest.mark.parametrize(
    ("scheme", "arguments", "problem"),
    [
        (Uncoded, (0,), "Uncoded: n is 0"),
        (GradientCoding, (0, 0), "n is 0"),
        (GradientCoding, (3, 3), "s is 3"),
        (GradientCoding, (3, -1), "s is -1"),
        (Backup, (3, 3), "Backup: s is 3"),
        (Backup, (0, 0), "Backup: n is 0"),
        (UnequalShares, (0, []), "UnequalShares: n is 0"),
        (UnequalShares, (2, [1]), "UnequalShares: speeds is [1]; give 2 numbers"),
        (UnequalShares, (2, 3), "UnequalShares: speeds is 3"),
        (UnequalShares, (2, [1, -1]), "the speed of worker 1 is -1"),
        (UnequalShares, (2, [1, float("nan")]), "the speed of worker 1 is nan"),
        (UnequalShares, (2, [float("inf"), 1]), "the speed of worker 0 is inf"),
        (UnequalShares, (2, ["a", 1]), "the speed of worker 0 is 'a'"),
        (UnequalShares, (2, [0, 0]), "all speeds are 0"),
    ],
)
def test_bad_parameters(scheme: Any, arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        scheme(*arguments)
    assert problem in str(raised.value)


def test_a_code_that_estimates_waits_for_all_but_s() -> None:
    scheme = GradientCoding.of(Expander(8, 3))
    assert not scheme.may_end(1, {0})
    assert not scheme.may_end(1, range(5))
    assert scheme.may_end(1, range(6))
    assert scheme.may_end(1, range(8))
    assert GradientCoding.of(BalancedBlockDesign(7, 3)).may_end(1, {1, 2, 3, 5, 6})
