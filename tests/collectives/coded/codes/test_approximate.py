"""Codes that estimate: designs, graphs, and their errors."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from closeranks.collectives.coded import BalancedBlockDesign, Expander
from closeranks.collectives.coded.codes.designs import block_design, designs_near
from closeranks.errors import CodeError
from tests.collectives.coded.codes.code_oracles import subsets

USUAL = [
    (3, 2), (7, 3), (7, 4), (11, 5), (13, 4), (15, 7), (16, 6), (19, 9), (21, 5), (23, 11),
    (31, 6), (31, 15), (35, 17), (37, 9), (40, 13), (57, 8), (63, 31), (64, 28), (73, 9), (85, 21),
    (91, 10), (101, 25), (133, 12), (6, 5), (5, 1), (1, 1), (4, 4),
]  # fmt: skip


@pytest.mark.parametrize(("n", "k"), USUAL)
def test_any_two_blocks_share_lam_points(n: int, k: int) -> None:
    code = BalancedBlockDesign(n, k)
    lam = k * (k - 1) / max(n - 1, 1)
    assert code.lam == lam
    assert code.load == k / n
    assert not code.exact
    shared = code.matrix @ code.matrix.T
    assert np.array_equal(shared, (k - lam) * np.eye(n) + lam)


def test_designs_come_with_their_complements_and_no_others() -> None:
    for n in range(2, 45):
        for k in range(1, n):
            design, other = block_design(n, k), block_design(n, n - k)
            assert (design is None) == (other is None)
            if design is not None:
                assert k * (k - 1) % (n - 1) == 0
                assert (design.sum(axis=0) == k).all()


def test_errors_of_the_fano_plane() -> None:
    code = BalancedBlockDesign(7, 3)
    wanted = [0, 0.25, 4 / 7, 1.0, 1.6, 2.5]
    assert [round(x, 3) for x in wanted] == [0, 0.25, 0.571, 1.0, 1.6, 2.5]
    for s, error in enumerate(wanted):
        for finished in combinations(range(7), 7 - s):
            assert code.error(finished) == pytest.approx(error, abs=1e-12)
            weights = code.decode(finished)
            assert set(weights[list(finished)]) == {3 / (3 + (6 - s))}
            best = np.linalg.lstsq(code.matrix[list(finished)].T, np.ones(7))[0]
            assert np.allclose(weights[list(finished)], best)


def test_designs_nearby_exist() -> None:
    for n, k in [(8, 3), (12, 5), (100, 10), (50, 7)]:
        near = designs_near(n, k)
        assert len(near) == 3
        assert all(block_design(*one) is not None for one in near)
    assert (7, 3) in designs_near(8, 3)
    assert (91, 10) in designs_near(100, 10)


@pytest.mark.parametrize(
    ("n", "d"), [(2, 1), (4, 3), (5, 2), (6, 3), (8, 3), (16, 4), (16, 12), (30, 2), (64, 5)]
)
def test_graphs_are_regular_and_connected(n: int, d: int) -> None:
    code = Expander(n, d)
    graph = code.matrix * d
    assert np.array_equal(graph, graph.T)
    assert set(np.unique(graph)) <= {0.0, 1.0}
    assert not np.diag(graph).any()
    assert (graph.sum(axis=0) == d).all()
    eigenvalues = np.linalg.eigvalsh(graph)
    assert eigenvalues[-2] < d - 1e-9
    assert code.second == pytest.approx(np.abs(eigenvalues)[np.argsort(np.abs(eigenvalues))][-2])
    assert np.array_equal(code.matrix, Expander(n, d, seed=0).matrix)
    assert (code.load, code.exact) == (d / n, False)


def test_another_seed_is_another_graph() -> None:
    graphs = {Expander(16, 4, seed).matrix.tobytes() for seed in range(20)}
    assert len(graphs) == 20


@pytest.mark.parametrize(("n", "d"), [(6, 3), (6, 2), (8, 3)])
def test_any_workers_but_none_give_the_best_estimate(n: int, d: int) -> None:
    code = Expander(n, d, seed=1)
    for finished in subsets(n):
        if not finished:
            continue
        assert code.decodable(finished)
        weights, error = code.decode(finished), code.error(finished)
        assert not weights[[i for i in range(n) if i not in finished]].any()
        gradient = code.matrix[list(finished)] @ (weights @ code.matrix - 1)
        assert np.abs(gradient).max() < 1e-12  # no other weights are better
        s = n - len(finished)
        assert error <= (code.second / d) ** 2 * n * s / (n - s) + 1e-12


def test_bound_of_a_larger_graph() -> None:
    code, draw = Expander(64, 6), np.random.default_rng(1)
    for s in (1, 8, 24):
        for _ in range(5):
            error = code.error(draw.permutation(64)[s:])
            assert error <= (code.second / 6) ** 2 * 64 * s / (64 - s)


@pytest.mark.parametrize("code", [Expander(6, 3), BalancedBlockDesign(7, 3)])
def test_nobody_gives_no_estimate(code: Expander | BalancedBlockDesign) -> None:
    assert not code.decodable([])
    for call in (code.decode, code.error, code.noise_gain):
        with pytest.raises(CodeError, match="no worker"):
            call([])
