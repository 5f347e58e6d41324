"""The authors' rule: patterns as bits against the schemes' own, and their figures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from closeranks.collectives.coded import (
    MSGC,
    SRSGC,
    CyclicRepetition,
    GilbertElliott,
    Scheme,
    simulate,
)
from closeranks.collectives.coded.prediction import deadline_rule, paper_comparison
from closeranks.errors import UsageError

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "msgc": lambda: MSGC(9, 1, 2, 3),
    "msgc, delay 3": lambda: MSGC(9, 2, 3, 4),
    "msgc, wide": lambda: MSGC(9, 1, 4, 5, inner=CyclicRepetition),
    "msgc of all": lambda: MSGC(9, 1, 2, 9),
    "srsgc": lambda: SRSGC(9, 1, 2, 4),
    "srsgc, delay 2": lambda: SRSGC(9, 2, 3, 4),
    "srsgc, wide": lambda: SRSGC(9, 1, 4, 7, inner=CyclicRepetition),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_patterns_as_bits_agree_with_the_scheme(name: str) -> None:
    waits = 0
    for seed in range(6):
        factors = GilbertElliott(0.12, 0.2, 3, seed, jitter=0.15).factors(40, 9)
        quick = deadline_rule.follow_deadline(SCHEMES[name](), factors, 1, 6, 1.0)
        slow = deadline_rule._by_tasks(SCHEMES[name](), factors, 1, 6, 1.0)
        assert quick.waited.tolist() == slow.waited.tolist()
        assert quick.per_round == pytest.approx(slow.per_round)
        waits += int(quick.waited.sum())
    assert 0 < waits < 240


def test_jobs_are_over_as_the_rule_promises() -> None:
    """Every job can be decoded when it is due, though workers were late."""
    for make in SCHEMES.values():
        scheme = make()
        factors = GilbertElliott(0.12, 0.2, 3, 1, jitter=0.15).factors(30, 9)
        for round, slow in enumerate(factors, 1):
            tasks = scheme.tasks(round)
            late = {int(worker) for worker in np.flatnonzero(slow > 2 * slow.min())}
            late = late if deadline_rule.conforms(scheme, round, late) else set()
            for worker in range(9):
                scheme.deliver(round, worker, () if worker in late else tasks[worker])
            if round > scheme.delay:
                assert scheme.decodable(round - scheme.delay)


def test_jobs_end_a_delay_later() -> None:
    found = simulate(MSGC(6, 1, 2, 2), np.ones((10, 6)), rounds=10, stop="deadline")
    assert (found.rounds, found.jobs, found.waits) == (10, 9, 0)
    # A round with the tasks of one job, then nine of two.
    load = MSGC(6, 1, 2, 2).load
    assert found.seconds == pytest.approx(9.5 * load)
    with pytest.raises(UsageError, match="the first job is over after 2"):
        simulate(MSGC(6, 1, 2, 2), np.ones((10, 6)), rounds=1)


def test_msgc_of_a_large_world_takes_no_time() -> None:
    slow = GilbertElliott(0.0419, 0.15, 3, 1, jitter=0.15)
    scheme = MSGC(256, 1, 2, 27)
    assert scheme.load == pytest.approx(2 / (256 + 9))
    options = {"fixed_s": 1.0, "compute_s": 6.0}
    found = simulate(scheme, slow, rounds=300, stop="deadline", **options)  # type: ignore[arg-type]
    assert 0.2 < found.waits / 300 < 0.8
    assert 2.0 < found.seconds / 300 < 3.0


def test_the_order_of_the_paper() -> None:
    rows = {row["scheme"]: row for row in paper_comparison.paper_comparison(seeds=(0,), rounds=60)}
    assert list(rows) == ["Uncoded", "GradientCoding", "SRSGC", "MSGC"]
    seconds = [row["seconds"] for row in rows.values()]
    assert seconds == sorted(seconds, reverse=True)
    assert 0.1 <= rows["MSGC"]["below_gc"] <= 0.25
    assert rows["MSGC"]["load"] < 2 / 256 < rows["SRSGC"]["load"]
    assert rows["Uncoded"]["waits"] == 60


@pytest.mark.exhaustive
def test_the_figures_of_the_paper() -> None:
    rows = {row["scheme"]: row for row in paper_comparison.paper_comparison()}
    seconds = [rows[name]["seconds"] for name in ("MSGC", "SRSGC", "GradientCoding", "Uncoded")]
    assert seconds == sorted(set(seconds))
    assert 0.1 <= rows["MSGC"]["below_gc"] <= 0.25
    assert rows["GradientCoding"]["speedup"] == pytest.approx(1.18, abs=0.03)


def test_the_search_computes_what_simulate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_comparison, "N", 12)
    schedule = paper_comparison._schedule(3, 50)
    slow = GilbertElliott(0.0419, 0.15, 3, 3, jitter=0.15)
    for s in (1, 2):
        code = paper_comparison._Candidate("GradientCoding", {"s": s}, (s + 1) / 12)
        found = simulate(
            CyclicRepetition(12, s), slow, rounds=50, fixed_s=1, compute_s=6, stop="deadline"
        )
        seconds, waits = paper_comparison._judge(code, schedule)
        assert seconds == pytest.approx(found.seconds / 50)
        assert waits == found.waits > 0
    known: dict[str, type[SRSGC] | type[MSGC]] = {"SRSGC": SRSGC, "MSGC": MSGC}
    for name, B, W, lam in [("SRSGC", 1, 3, 6), ("SRSGC", 2, 3, 4), ("MSGC", 2, 3, 5)]:
        scheme = known[name](12, B, W, lam, inner=CyclicRepetition)
        found = simulate(scheme, slow, rounds=50, fixed_s=1, compute_s=6, stop="deadline")
        candidate = paper_comparison._Candidate(name, {"B": B, "W": W, "lam": lam}, scheme.load)
        assert any(
            one.load == pytest.approx(scheme.load)
            for one in paper_comparison._candidates()
            if (one.scheme, one.parameters) == (name, candidate.parameters)
        )
        seconds, waits = paper_comparison._judge(candidate, schedule)
        assert seconds == pytest.approx(found.seconds / 50)
        assert waits == found.waits
