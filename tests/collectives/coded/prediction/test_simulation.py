"""Simulated rounds: by hand, against a slow reference, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from closeranks.collectives.coded import (
    MSGC,
    SRSGC,
    Backup,
    CyclicRepetition,
    FractionalRepetition,
    GilbertElliott,
    GradientCoding,
    PartialRepetition,
    Repetition,
    Scheme,
    Uncoded,
    UnequalShares,
    simulate,
)
from closeranks.errors import UsageError
from tests.collectives.coded.prediction import event_reference


def per_round(scheme: Any, slow: Any, **options: Any) -> list[float]:
    """Simulate as many rounds as there are factors."""
    found = simulate(scheme, slow, rounds=len(slow), **options)
    assert found.seconds == pytest.approx(found.per_round.sum())
    assert found.rounds == len(slow) == len(found.per_round)
    seconds: list[float] = found.per_round.tolist()
    return seconds


def test_uncoded_waits_for_the_slowest() -> None:
    slow = [[1, 1], [1, 3], [2, 1]]
    assert per_round(Uncoded(2), slow, compute_s=2) == pytest.approx([1, 3, 2])
    assert per_round(Uncoded(2), slow, compute_s=2, fixed_s=0.5) == pytest.approx([1.5, 4.5, 3])


def test_waits_count_the_rounds_that_waited_for_a_late_worker() -> None:
    slow = [[1, 1], [1, 3], [2, 1]]
    assert simulate(Uncoded(2), slow, rounds=3).waits == 1
    assert simulate(Uncoded(2), slow, rounds=3, mu=0.5).waits == 2
    assert simulate(Repetition(2, 1), slow, rounds=3).waits == 0
    # Alone in its group, the late worker is waited for.
    for s, waits in ((0, 1), (1, 0)):
        assert simulate(PartialRepetition(2, s), slow, rounds=3).waits == waits


@pytest.mark.parametrize(
    ("abandon", "second"),
    [
        # Worker 1 of one group is late in round 1, which takes 8 s: 16 micro-batches
        # of 0.5 s.  Its own take 1.7 s each: the fifth ends at 8.5.
        ("part", 0.5 + 6),
        # All its work ends at 27.2: worker 0 goes on alone, slow in round 2.
        ("never", 24),
        ("now", 6),
    ],
)
def test_what_a_late_worker_takes_along(abandon: str, second: float) -> None:
    slow = [[1, 3.4], [3, 0.75]]
    found = per_round(Repetition(2, 1), slow, compute_s=8, abandon=abandon)
    assert found == pytest.approx([8, second])


def test_a_round_that_is_over_is_left_out() -> None:
    """Worker 1 ends its first round after the second is over, and begins the third."""
    slow = [[1, 2.5], [1, 1], [9, 1]]
    found = per_round(Repetition(2, 1), slow, compute_s=1, abandon="never")
    assert found == pytest.approx([1, 1, 1.5])


def test_a_worker_that_ends_a_micro_batch_with_the_round_has_begun_the_next() -> None:
    slow = [[1, 2], [9, 1]]
    found = per_round(Repetition(2, 1), slow, compute_s=16)  # pieces of 1 and 2 s
    assert found == pytest.approx([16, 2 + 16])


def test_help_comes_after_a_micro_batch_of_grace() -> None:
    """Worker 1 is 8 times slower, micro-batches take 1 s and 8 s.

    At 8 s it has done one and begins its second, worker 0 has done its own.  At
    9 s worker 0 takes those from the back: 7, 6, ..., 2, until 15 s.  Then it
    computes number 1, too, which is done at 16 s by both.
    """
    scheme = PartialRepetition(2, 1, micro=8)
    assert per_round(scheme, [[1, 8]], compute_s=16) == pytest.approx([16])
    # A little slower, and worker 0 is first.
    assert per_round(scheme, [[1, 8.5]], compute_s=16) == pytest.approx([16])
    # In the next round, worker 1 begins 1 s late.
    assert per_round(scheme, [[1, 8.5], [1, 1]], compute_s=16) == pytest.approx([16, 9])
    assert per_round(
        scheme, [[1, 8.5], [1, 1]], compute_s=16, abandon="now"
    ) == pytest.approx([16, 8])  # fmt: skip


def test_nobody_helps_within_the_grace() -> None:
    scheme = PartialRepetition(3, 2, micro=4)
    assert per_round(scheme, [[1, 1.25, 1.1]], compute_s=12) == pytest.approx([5])
    # One more micro-batch: worker 0 has waited long enough at 5.0, worker 1 ends at 5.2.
    assert per_round(scheme, [[1, 1.3, 1.1]], compute_s=12) == pytest.approx([5.2])


def test_backup_leaves_the_slowest_out() -> None:
    slow = [[1, 2, 3, 4]] * 2
    found = per_round(Backup(4, 1), slow, compute_s=4, abandon="now")
    assert found == pytest.approx([3, 3])


def test_unequal_shares_fit_a_slow_worker() -> None:
    scheme = UnequalShares(3, [1, 1, 0.5])
    assert per_round(scheme, [[1, 1, 2]], compute_s=5) == pytest.approx([2])
    # A worker without parts is not waited for, and takes no fixed seconds.
    assert per_round(UnequalShares(2, [1, 0]), [[1, 9]], fixed_s=1) == pytest.approx([2])


def test_the_deadline_is_a_multiple_of_the_fastest() -> None:
    slow = [[1, 1, 1, 1.5], [1, 1, 1, 5], [1, 1, 5, 6], [1, 2, 2, 2]]
    code = CyclicRepetition(4, 1)  # load 1/2
    found = simulate(code, slow, rounds=4, compute_s=2, stop="deadline")
    assert found.per_round.tolist() == pytest.approx([1.5, 2, 6, 2])
    assert found.waits == 1
    found = simulate(Uncoded(4), slow, rounds=4, compute_s=4, stop="deadline")
    assert found.per_round.tolist() == pytest.approx([1.5, 5, 6, 2])
    assert found.waits == 2
    found = simulate(Backup(4, 2), slow, rounds=4, compute_s=4, stop="deadline", mu=0.4)
    assert found.per_round.tolist() == pytest.approx([1.4, 1.4, 1.4, 2])


def test_s_late_workers_are_allowed() -> None:
    """The program of the authors allows fewer than s."""
    slow = [[1, 1, 5, 5]]
    for code in (CyclicRepetition(4, 2), GradientCoding(4, 2)):
        assert simulate(code, slow, rounds=1, stop="deadline").waits == 0
    assert simulate(CyclicRepetition(4, 1), slow, rounds=1, stop="deadline").waits == 1


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "uncoded": lambda: Uncoded(6),
    "repetition": lambda: GradientCoding(6, 1),
    "three groups of seven": lambda: GradientCoding(7, 1),
    "fractional": lambda: GradientCoding.of(FractionalRepetition(6, 2)),
    "cyclic": lambda: GradientCoding.of(CyclicRepetition(6, 2)),
    "backup": lambda: Backup(6, 2),
    "shares": lambda: UnequalShares(6, [1, 2, 1, 0.5, 1, 1]),
    "msgc": lambda: MSGC(6, 1, 3, 2),
    "msgc of all": lambda: MSGC(5, 2, 3, 5),
    "srsgc": lambda: SRSGC(6, 1, 2, 2),
}


@pytest.mark.parametrize("abandon", ["part", "never", "now"])
@pytest.mark.parametrize("name", SCHEMES)
def test_whole_tasks_agree_with_the_reference(name: str, abandon: str) -> None:
    for seed in range(3):
        scheme = SCHEMES[name]()
        slow = GilbertElliott(0.2, 0.5, 4.3, seed, jitter=0.3).factors(30, scheme.n)
        wanted = event_reference.whole_tasks(scheme, slow, 0.3, 2.0, abandon)
        options: dict[str, Any] = {"fixed_s": 0.3, "compute_s": 2.0, "abandon": abandon}
        assert per_round(scheme, slow, **options) == pytest.approx(wanted)


@pytest.mark.parametrize("abandon", ["part", "never", "now"])
@pytest.mark.parametrize(("n", "s", "micro"), [(4, 3, 8), (8, 1, 5), (7, 2, 3), (3, 0, 8)])
def test_groups_agree_with_the_reference(n: int, s: int, micro: int, abandon: str) -> None:
    for seed in range(4):
        scheme = PartialRepetition(n, s, micro)
        slow = GilbertElliott(0.2, 0.5, 6.1, seed, jitter=0.3).factors(40, n)
        wanted = event_reference.groups(scheme, slow, 0.3, 2.0, abandon)
        options: dict[str, Any] = {"fixed_s": 0.3, "compute_s": 2.0, "abandon": abandon}
        assert per_round(scheme, slow, **options) == pytest.approx(wanted)


def test_a_scheme_is_left_as_it_is() -> None:
    scheme = GradientCoding(4, 1)
    first = simulate(scheme, GilbertElliott(0.3, 0.5, 4, 1), rounds=20)
    second = simulate(scheme, GilbertElliott(0.3, 0.5, 4, 1), rounds=20)
    assert first.per_round.tolist() == second.per_round.tolist()


@pytest.mark.parametrize(
    ("scheme", "slow", "options", "said"),
    [
        (4, [[1]], {}, "scheme_or_code is 4"),
        (Uncoded(2), [[1]], {}, "1 rounds and 1 workers"),
        (Uncoded(2), [[1, 1]], {"rounds": 2}, "give 2 rounds or more of 2 workers"),
        (Uncoded(2), [[1, 1]], {"rounds": 0}, "rounds is 0"),
        (Uncoded(2), [1, 1], {}, "shape (2,)"),
        (Uncoded(2), "slow", {}, "delays is 'slow'"),
        (Uncoded(2), [[1, float("nan")]], {}, "the factor of worker 1 in round 1 is nan"),
        (Uncoded(2), [[1, 1], [0, 1]], {}, "the factor of worker 0 in round 2 is 0.0"),
        (Uncoded(2), [[1, 1]], {"stop": "soon"}, "stop is 'soon'"),
        (Uncoded(2), [[1, 1]], {"abandon": "always"}, "abandon is 'always'"),
        (Uncoded(2), [[1, 1]], {"mu": -1}, "mu is -1"),
        (Uncoded(2), [[1, 1]], {"fixed_s": float("inf")}, "fixed_s is inf"),
        (Uncoded(2), [[1, 1]], {"compute_s": 0}, "fixed_s and compute_s are 0"),
        (PartialRepetition(2, 1), [[1, 1]], {"stop": "deadline"}, "no rule for a deadline"),
    ],
)
def test_bad_input_is_refused(scheme: Any, slow: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as found:
        simulate(scheme, slow, **{"rounds": 1, **options})
    assert said in str(found.value)
