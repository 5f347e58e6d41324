"""Cyclic codes: coefficients, which sets decode, and how much noise grows."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from closeranks.collectives.coded import CyclicMDS, CyclicRepetition, GradientCode
from tests.collectives.coded.codes.code_oracles import cyclic_fractions, residual, subsets

EPS32 = float(np.finfo(np.float32).eps)


@pytest.mark.parametrize(("n", "s"), [(5, 2), (9, 3), (16, 7)])
def test_random_rows_are_those_of_exact_arithmetic(n: int, s: int) -> None:
    exact = np.array(cyclic_fractions(n, s, 3), dtype=np.float64)
    found = CyclicRepetition(n, s, 3).matrix
    assert np.abs(found - exact).max() <= 1e-10 * np.abs(exact).max()
    assert np.array_equal(found, CyclicRepetition(n, s, seed=3).matrix)
    assert not np.array_equal(found, CyclicRepetition(n, s).matrix)


@pytest.mark.parametrize(("n", "s"), [(n, s) for n in range(1, 14) for s in range(1 - n % 2, n, 2)])
def test_fixed_rows_are_a_polynomial_with_roots_around_minus_one(n: int, s: int) -> None:
    row = CyclicMDS(n, s).matrix[0]
    exponents = (n - s + 1) // 2 + np.arange(s)
    wanted = np.atleast_1d(np.real(np.poly(np.exp(2j * np.pi * exponents / n))))
    assert np.allclose(row[: s + 1], wanted / wanted.sum(), atol=1e-10)
    assert not row[s + 1 :].any()
    assert row.sum() == pytest.approx(1)


@pytest.mark.parametrize("code", [CyclicRepetition(9, 3), CyclicMDS(8, 3)])
def test_worker_i_has_parts_i_to_i_plus_s(code: GradientCode) -> None:
    for i in range(code.n):
        assert code.assignment(i) == tuple(sorted((i + step) % code.n for step in range(4)))
    assert code.load == 4 / code.n


@pytest.mark.parametrize("n", range(1, 11))
def test_fixed_code_decodes_what_least_squares_decodes(n: int) -> None:
    """Residuals of small codes are either rounding errors or large."""
    for s in range(1 - n % 2, n, 2):
        code = CyclicMDS(n, s)
        for finished in subsets(n):
            if finished and finished[0] > 0 and len(finished) < n:
                continue  # a turn of another set
            off = residual(code, finished) if finished else 1.0
            assert off < 1e-9 or off > 1e-4
            assert code.decodable(finished) == (off < 1e-9), (s, finished)


def test_fixed_code_decodes_some_sets_of_fewer_than_n_minus_s() -> None:
    code = CyclicMDS(4, 1)
    small = [f for f in combinations(range(4), 2) if code.decodable(f)]
    assert small == [(0, 2), (1, 3)]
    assert np.allclose(code.decode((0, 2)), [2, 0, 2, 0])
    large = CyclicMDS(64, 15)
    assert large.decodable(range(0, 64, 2))
    assert np.abs(large.decode(range(0, 64, 2)) @ large.matrix - 1).max() < 1e-12
    assert not large.decodable({*range(0, 64, 2)} - {0})
    assert not large.decodable(range(48))
    assert large.decodable(range(49))


#: n, s -> the largest weight, from coding.md 2.3: random late workers, and late ones in a row.
RANDOM = {(16, 3): 6.5e2, (32, 7): 3.4e3, (64, 15): 3.0e3}
IN_A_ROW = {(16, 3): 5.3e1, (32, 7): 9.3e4, (64, 15): 3.3e11, (128, 15): 3e12, (256, 15): 4e11}


@pytest.mark.parametrize(("n", "s"), RANDOM)
def test_noise_of_the_random_code(n: int, s: int) -> None:
    code, draw = CyclicRepetition(n, s), np.random.default_rng(0)
    sets = [draw.permutation(n)[s:] for _ in range(20)]
    largest = max(float(np.abs(code.decode(f)).max()) for f in sets)
    assert RANDOM[n, s] / 10 < largest < RANDOM[n, s] * 10
    for finished in sets:
        weights = code.decode(finished)
        gain = np.abs(weights).sum() * np.abs(code.matrix).max()
        assert code.noise_gain(finished) == pytest.approx(gain)
        assert np.abs(weights @ code.matrix - 1).max() < 1e-9


@pytest.mark.parametrize(("n", "s"), IN_A_ROW)
def test_noise_of_the_fixed_code_with_late_workers_in_a_row(n: int, s: int) -> None:
    code = CyclicMDS(n, s)
    assert code.matrix.max() < 0.4
    largest = float(np.abs(code.decode(range(s, n))).max())
    assert IN_A_ROW[n, s] / 2 < largest < IN_A_ROW[n, s] * 2
    gain = code.noise_gain(range(s, n)) / code.matrix.max()
    assert largest <= gain <= n * largest


@cache
def _large() -> CyclicRepetition:
    return CyclicRepetition(256, 15)


def test_the_gain_warns_of_float32() -> None:
    finished = np.random.default_rng(2).permutation(256)[15:]
    code = _large()
    weights = code.decode(finished)  # not refused
    assert np.abs(weights @ code.matrix - 1).max() < 1e-6
    assert code.noise_gain(finished) > 0.01 / EPS32
    single = weights.astype(np.float32) @ code.matrix.astype(np.float32)
    assert np.abs(single - 1).max() > 1e-4
