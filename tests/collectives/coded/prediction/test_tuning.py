"""`tune`: the right scheme for each kind of slow worker, judged on later rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.collectives.coded import (
    GilbertElliott,
    PartialRepetition,
    Trace,
    Uncoded,
    UnequalShares,
    tune,
)
from closeranks.collectives.coded.prediction.block_means import mean_interval, standard_error
from closeranks.collectives.coded.prediction.candidates import candidates, per_round
from closeranks.collectives.coded.stragglers.trace_file import TraceWriter
from closeranks.errors import UsageError

#: The regimes: enter, stay and slow-down of `GilbertElliott`.
BURSTY = [
    (0.005, 0.15, 2), (0.005, 0.15, 3), (0.005, 0.15, 8), (0.02, 0.15, 3), (0.02, 0.15, 8),
    (0.02, 0.6, 8),
]  # fmt: skip

HUGE = pytest.param(10**400, id="huge")


def calm(rounds: int, n: int) -> NDArray[np.float64]:
    return GilbertElliott(0, 0, 1, 1, jitter=0.03).factors(rounds, n)


def chronic(rounds: int, n: int) -> NDArray[np.float64]:
    factors = calm(rounds, n)
    factors[:, 5] *= 2
    return factors


def judged(factors: NDArray[np.float64]) -> tuple[Any, float]:
    """Fit on the first half; give the scheme, and its time over the best's in the second."""
    n, half = factors.shape[1], len(factors) // 2
    options: dict[str, Any] = {"fixed_s": 0.0, "compute_s": float(n)}
    scheme = tune(factors[:half], **options)
    (chosen,) = (row["scheme"] for row in vars(scheme)["why"].rows if row["chosen"])
    times = {
        one.name: per_round(one, factors[half:], **options).mean()
        for one in candidates(factors[:half], micro=8, exact=True, memory=None, delay=0)
    }
    return scheme, float(times[chosen] / min(times.values()))


def test_calm_and_slow_for_good() -> None:
    scheme, ratio = judged(calm(400, 16))
    assert isinstance(scheme, Uncoded)
    assert ratio <= 1.03
    scheme, ratio = judged(chronic(400, 16))
    assert isinstance(scheme, UnequalShares)
    assert ratio <= 1.03
    assert scheme.shares[5] * 2 == scheme.shares[0]


@pytest.mark.parametrize("regime", [BURSTY[0], BURSTY[3], BURSTY[5]])
def test_what_is_chosen_is_near_the_best(regime: tuple[float, float, float]) -> None:
    scheme, ratio = judged(GilbertElliott(*regime, 7).factors(600, 16))
    assert ratio <= 1.03
    assert isinstance(scheme, PartialRepetition)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("regime", ["calm", "chronic", *BURSTY])
def test_all_regimes_at_full_length(regime: Any, seed: int) -> None:
    if regime == "calm":
        factors = GilbertElliott(0, 0, 1, seed, jitter=0.03).factors(2000, 64)
    elif regime == "chronic":
        factors = GilbertElliott(0, 0, 1, seed, jitter=0.03).factors(2000, 64)
        factors[:, 5] *= 2
    else:
        enter, stay, slowdown = regime
        factors = GilbertElliott(enter, stay, slowdown, seed).factors(2000, 64)
    scheme, ratio = judged(factors)
    assert ratio <= 1.03
    assert isinstance(scheme, Uncoded) == (regime == "calm")
    assert isinstance(scheme, UnequalShares) == (regime == "chronic")


def test_a_gain_that_may_be_chance_is_none() -> None:
    """One slow round of twenty: 30 % are saved, but by one round alone."""
    factors = np.ones((20, 4))
    factors[7, 2] = 12
    scheme = tune(factors, fixed_s=0, compute_s=4)
    assert isinstance(scheme, Uncoded)
    assert "standard errors" in vars(scheme)["why"].reason
    found = tune(calm(60, 8), fixed_s=0, compute_s=8)
    assert vars(found)["why"].reason == "no scheme saves more than 1% of a round"
    factors[::2, 2] = 12
    assert not isinstance(tune(factors, fixed_s=0, compute_s=4), Uncoded)


def test_messages_take_time_whatever_the_scheme() -> None:
    factors = GilbertElliott(0.02, 0.15, 2, 7).factors(300, 8)
    assert isinstance(tune(factors, fixed_s=0, compute_s=8), PartialRepetition)
    found = tune(factors, fixed_s=0, compute_s=8, comm_s=10)
    assert isinstance(found, Uncoded)
    assert "not more than 3%" in vars(found)["why"].reason


def test_candidates_fit_what_is_allowed() -> None:
    factors = GilbertElliott(0.1, 0.3, 4, 7).factors(60, 8)

    def names(**options: Any) -> str:
        scheme = tune(factors, fixed_s=0, compute_s=8, **options)
        table = vars(scheme)["why"]
        assert str(table).count("\n") == len(table.rows) + 1
        assert [row["seconds"] for row in table.rows] == sorted(r["seconds"] for r in table.rows)
        return " ".join(row["scheme"] for row in table.rows)

    assert "Backup" not in names()
    assert "Backup(8, 2)" in names(exact=False)
    assert "GC" not in names()
    assert "SRSGC(8, 1, 2" in names(delay=1)
    assert "MSGC(8, 1, 2" in names(delay=1)
    assert "MSGC(8, 2" not in names(delay=1)
    assert names(memory=1) == "Uncoded(8)"
    assert "PartialRepetition(8, 1)" in names(memory=2)
    assert "PartialRepetition(8, 3)" not in names(memory=2)


def test_a_trace_says_how_many_micro_batches_there_are(tmp_path: Any) -> None:
    factors = GilbertElliott(0.1, 0.3, 8, 7).factors(80, 8)
    TraceWriter(tmp_path / "t.h5", 8, micro=5).append(factors)
    scheme = tune(Trace(tmp_path / "t.h5"), fixed_s=0, compute_s=8)
    assert isinstance(scheme, PartialRepetition)
    assert scheme.micro == 5


@pytest.mark.parametrize(
    ("delays", "options", "said"),
    [
        (GilbertElliott(0, 0, 1, 1), {}, "a GilbertElliott, which has no end"),
        ([[1, 0]], {}, "the factor of worker 1"),
        ([[1, 1]], {"fixed_s": -1}, "fixed_s is -1"),
        ([[1, 1]], {"compute_s": 0}, "fixed_s and compute_s are 0"),
        ([[1, 1]], {"comm_s": None}, "comm_s is None"),
        ([[1, 1]], {"memory": 0.5}, "memory is 0.5"),
        ([[1, 1]], {"delay": -1}, "delay is -1"),
    ],
)
def test_bad_input_is_refused(delays: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as found:
        tune(delays, **{"fixed_s": 0, "compute_s": 1, **options})
    assert said in str(found.value)


def test_errors_and_intervals_of_dependent_values() -> None:
    """Values that come in runs of ten are worth a tenth of as many."""
    random = np.random.default_rng(3)
    covered, errors = 0, []
    for _ in range(200):
        values = np.repeat(random.normal(5, 1, 60), 10)
        low, high = mean_interval(values)
        covered += low <= 5 <= high
        errors.append(standard_error(values))
    assert 0.85 <= covered / 200 <= 1
    assert np.mean(errors) == pytest.approx(60**-0.5, rel=0.1)
    assert standard_error(np.ones(3)) == np.inf
    assert mean_interval(np.ones(1)) == (1, 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("compute_s", [1e308, 1e-308, HUGE, 1e51, 1j, float("nan")])
def test_seconds_that_overflow(compute_s: Any) -> None:
    for fixed_s, rest in ((0, {"compute_s": compute_s}), (compute_s, {"compute_s": 0})):
        with pytest.raises(UsageError, match=r"(compute_s|fixed_s) (is )?[1n(]"):
            tune(np.ones((20, 4)), fixed_s=fixed_s, **rest)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [1e308, 1e-308, 1e51, 1e-51, HUGE])
def test_factors_that_overflow(factor: Any) -> None:
    with pytest.raises(UsageError, match=r"factor of worker|delays is"):
        tune([[1, factor, 1, 1]] * 20, fixed_s=0, compute_s=1)
    with pytest.raises(UsageError, match=r"delays is"):
        tune(np.full((20, 4), 1 + 0j), fixed_s=0, compute_s=1)
    for most in (1e50, 1e-50):
        made = tune(np.full((20, 4), most), fixed_s=0, compute_s=most)
        assert isinstance(made, Uncoded)
