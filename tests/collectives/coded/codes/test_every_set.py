"""Exact codes with up to six workers: every set of finished workers."""

from __future__ import annotations

import numpy as np
import pytest

from closeranks.collectives.coded import (
    CyclicMDS,
    FractionalRepetition,
    GradientCode,
    Repetition,
)
from closeranks.collectives.coded.codes.gradient_code import MOST_SETS
from closeranks.collectives.coded.codes.group_code import GroupCode
from closeranks.errors import CodeError, UsageError
from tests.collectives.coded.codes.code_oracles import (
    EXACT,
    fractions_of,
    name,
    residual,
    spans_ones,
    subsets,
)

EPS = float(np.finfo(np.float64).eps)
every_code = pytest.mark.parametrize("code", EXACT, ids=name)


def _vectors(code: GradientCode, gradients: np.ndarray) -> np.ndarray:
    """Give what workers send that know their own parts only."""
    sent = np.zeros((code.n, gradients.shape[1]))
    for worker in range(code.n):
        for part in code.assignment(worker):
            sent[worker] += code.matrix[worker, part] * gradients[part]
    return sent


@every_code
def test_the_sum_comes_back_in_values(code: GradientCode) -> None:
    gradients = np.random.default_rng(code.n).standard_normal((code.parts, 7))
    sent = _vectors(code, gradients)
    decoded = 0
    for finished in subsets(code.n):
        if not code.decodable(finished):
            with pytest.raises(CodeError):
                code.decode(finished)
            continue
        decoded += 1
        weights = code.decode(finished)
        absent = [i for i in range(code.n) if i not in finished]
        assert weights.shape == (code.n,)
        assert not weights[absent].any()
        bound = 100 * EPS * code.noise_gain(finished) * code.parts
        there = np.where(np.isin(np.arange(code.n), finished)[:, None], sent, np.nan)
        found = np.nan_to_num(weights[:, None] * there).sum(axis=0)
        assert np.abs(weights @ code.matrix - 1).max() <= bound
        assert np.abs(found - gradients.sum(axis=0)).max() <= bound * np.abs(gradients).max()
        assert code.error(finished) <= code.parts * bound**2
    assert decoded >= sum(len(f) >= code.n - getattr(code, "s", 0) for f in subsets(code.n))


@every_code
def test_decodable_is_what_exact_arithmetic_says(code: GradientCode) -> None:
    if isinstance(code, CyclicMDS):
        return  # test_cyclic has more of them
    rows = fractions_of(code)
    for finished in subsets(code.n):
        assert code.decodable(finished) == spans_ones([rows[i] for i in finished]), finished


@every_code
def test_any_s_workers_may_be_late(code: GradientCode) -> None:
    s = code.s  # type: ignore[attr-defined]
    enough = [f for f in subsets(code.n) if len(f) >= code.n - s]
    assert all(code.decodable(f) for f in enough)
    assert not code.decodable(())


@every_code
def test_load_is_what_the_assignment_says(code: GradientCode) -> None:
    counts = [len(code.assignment(worker)) for worker in range(code.n)]
    assert code.load == max(counts) / code.parts
    assert code.exact


@pytest.mark.parametrize("code", [one for one in EXACT if isinstance(one, GroupCode)], ids=name)
def test_groups_take_their_lowest_worker_with_weight_one(code: GroupCode) -> None:
    for finished in subsets(code.n):
        if code.decodable(finished):
            lowest = {code.group(i): i for i in reversed(finished)}
            expected = np.isin(np.arange(code.n), list(lowest.values()))
            assert np.array_equal(code.decode(finished), expected)
            assert code.error(finished) == 0
            assert code.noise_gain(finished) == code.n_groups


def test_groups_and_parts_are_the_stated_ones() -> None:
    for n in range(1, 20):
        for s in range(n):
            code, g = Repetition(n, s), n // (s + 1)
            assert (code.n_groups, code.parts, code.load) == (g, g, 1 / g)
            assert [code.group(i) for i in range(n)] == [i * g // n for i in range(n)]
            assert [code.assignment(i) for i in range(n)] == [(i * g // n,) for i in range(n)]
    blocks = FractionalRepetition(6, 1)
    assert [blocks.assignment(i) for i in range(6)] == [(0, 1), (2, 3), (4, 5)] * 2
    assert [blocks.group(i) for i in range(6)] == [0, 1, 2] * 2


def test_the_oracle_tells_codes_apart_from_others() -> None:
    """A control: a code whose last worker forgets a part is found out."""
    code = next(one for one in EXACT if one.n == 6 and getattr(one, "s", 0) == 2)
    rows = fractions_of(code)
    rows[5] = [0 * x for x in rows[5]]
    assert any(code.decodable(f) != spans_ones([rows[i] for i in f]) for f in subsets(code.n))
    assert residual(code, range(6)) < 1e-12


def test_workers_may_be_given_in_many_ways() -> None:
    code = EXACT[-3]
    assert code.n == 6
    weights = code.decode(range(6))
    same: list[object] = [
        np.ones(6, bool), np.arange(6), {5, 4, 3, 2, 1, 0}, iter(range(6)), [0, 0, 1, 2, 3, 4, 5],
    ]  # fmt: skip
    assert all(code.decode(one) is weights for one in same)  # type: ignore[arg-type]
    wrong: list[object] = [
        [6], [-1], [0.5], ["a"], 3, None, np.ones(5, bool), np.ones((6, 1), bool), [True] * 6,
        np.array(3), np.zeros((2, 2), int),
    ]  # fmt: skip
    for one in wrong:
        for call in (code.decode, code.decodable, code.error, code.noise_gain):
            with pytest.raises(UsageError):
                call(one)  # type: ignore[arg-type]


def test_weights_are_kept_by_set_and_not_for_ever() -> None:
    code = CyclicMDS(12, 5)
    first = code.decode(range(7))
    assert code.decode(np.arange(12) < 7) is first
    assert not first.flags.writeable
    assert not code.matrix.flags.writeable
    used = [f for f in subsets(12) if len(f) in (2, 8)]
    assert len(used) > 2 * MOST_SETS
    for finished in used:
        if code.decodable(finished):
            code.decode(finished)
        else:
            with pytest.raises(CodeError):
                code.decode(finished)
        assert len(code._known) <= MOST_SETS
    assert code.decode(range(7)) is not first
    assert np.array_equal(code.decode(range(7)), first)


def test_an_error_names_the_workers_and_the_parts() -> None:
    repetition = Repetition(8, 1)
    with pytest.raises(CodeError, match=r"workers 0, 1, 6, 7 of 8 .* parts 1, 2; wait"):
        repetition.decode([0, 1, 6, 7])
    with pytest.raises(CodeError, match=r"no worker of 8 .* parts 0, 1, 2, 3;"):
        repetition.decode([])
