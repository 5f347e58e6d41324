"""The tree of workers, and the code with shorter vectors."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
import pytest

from closeranks.collectives.coded import CommunicationEfficient, Tree
from closeranks.errors import CodeError, UsageError
from tests.collectives.coded.codes.code_oracles import subsets
from tests.shares import SEED

DAY = 0 if SEED == "all" else int(SEED)


@pytest.mark.parametrize(
    ("branching", "depth", "s", "load", "n"),
    [(4, 2, 1, 1 / 6, 20), (6, 3, 2, 1 / 14, 258), (5, 2, 1, 1 / 6, 30), (3, 1, 2, 1.0, 3)],
)
def test_loads(branching: int, depth: int, s: int, load: float, n: int) -> None:
    code = Tree(branching, depth, s)
    assert code.load == pytest.approx(load, abs=1e-15)
    assert code.n == n
    ratio = branching // (s + 1)
    assert code.parts == sum(ratio**level for level in range(1, depth + 1))
    assert all(len(code.assignment(worker)) == 1 for worker in range(n))


def _sum_at(code: Tree, worker: int | None, late: frozenset[int]) -> np.ndarray | None:
    """Give what a worker (None: the root) sends up, by the paper's recursion."""
    total = np.zeros(code.parts)
    if worker is not None:
        if worker in late:
            return None
        total[list(code.assignment(worker))] = 1
    children = [i for i in range(code.n) if code.parent(i) == worker]
    groups: dict[int, np.ndarray | None] = {}
    for at, child in enumerate(children):
        group = at * (code.branching // (code.s + 1)) // code.branching
        sent = _sum_at(code, child, late)
        if groups.get(group) is None:
            groups[group] = sent
    if any(one is None for one in groups.values()):
        return None
    return total + sum(one for one in groups.values() if one is not None)


@pytest.mark.parametrize(
    ("b", "depth", "s"), [(2, 2, 1), (2, 2, 0), (3, 2, 1), (3, 2, 2), (2, 3, 1), (4, 2, 1)]
)
def test_along_the_tree_is_the_recursion(b: int, depth: int, s: int) -> None:
    code, draw = Tree(b, depth, s), np.random.default_rng(0)
    for _ in range(100):
        chance = draw.random()
        late = frozenset(np.flatnonzero(draw.random(code.n) < chance).tolist())
        finished = set(range(code.n)) - late
        sent = _sum_at(code, None, late)
        if sent is None:
            with pytest.raises(CodeError):
                code.decode_along(finished)
            continue
        assert (sent == 1).all()
        weights = code.decode_along(finished)
        assert np.array_equal(weights @ code.matrix, np.ones(code.parts))
        assert not weights[list(late)].any()
        assert code.decodable(finished)
        above = [code.parent(i) for i in np.flatnonzero(weights).tolist()]
        assert all(i is None or weights[i] == 1 for i in above)


def test_each_parent_stands_s_late_children() -> None:
    code = Tree(3, 2, 1)
    families = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    for child in range(3):
        code.decode_along(set(range(12)) - {family[child] for family in families})
    with pytest.raises(CodeError, match="some parent lacks a group"):
        code.decode_along(set(range(12)) - {0, 1, 2})
    # Below a late parent nothing comes through, but the vectors are there.
    both = set(range(12)) - {0, 6, 7, 9}
    assert code.decodable(both)


def _sets(n: int, size: int, most: int) -> list[tuple[int, ...]]:
    """Give all sets, or each day others."""
    if comb(n, size) <= most:
        return list(combinations(range(n), size))
    draw = np.random.default_rng([DAY, n, size])
    some = [tuple(sorted(draw.permutation(n)[:size].tolist())) for _ in range(most)]
    return [*some, *(tuple(sorted((i + q) % n for q in range(size))) for i in range(n))]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 9, 12, 16])
def test_short_vectors_give_the_sum(n: int) -> None:
    draw = np.random.default_rng(n)
    cases = [(s, m) for s in range(n) for m in range(1, n - s + 1)]
    if n > 6:
        cases = [cases[i] for i in np.random.default_rng([DAY, n]).permutation(len(cases))[:20]]
    for s, m in cases:
        code = CommunicationEfficient(n, s, m)
        gradients = draw.standard_normal((n, 3 * m + 1))
        sent = [code.encode(j, gradients[list(code.assignment(j))]) for j in range(n)]
        assert {one.shape for one in sent} == {(4 if m > 1 else 3 * m + 1,)}
        for finished in _sets(n, n - s, 20):
            assert code.decodable(finished)
            found = code.decode({j: sent[j] for j in finished}, gradients.shape[1])
            assert np.abs(found - gradients.sum(axis=0)).max() < 1e-8


def test_short_vectors_of_all_sets_of_a_small_code() -> None:
    code = CommunicationEfficient(5, 1, 2)
    assert (code.load, code.parts, code.exact) == (0.6, 5, True)
    gradients = np.random.default_rng(0).standard_normal((5, 8))
    sent = {j: code.encode(j, gradients[list(code.assignment(j))]) for j in range(5)}
    for finished in subsets(5):
        there = {j: sent[j] for j in finished}
        assert code.decodable(finished) == (len(finished) >= 4)
        if len(finished) >= 4:
            assert np.abs(code.decode(there, 8) - gradients.sum(axis=0)).max() < 1e-12
        else:
            with pytest.raises(CodeError, match="wait for 4 workers"):
                code.decode(there, 8)
    with pytest.raises(UsageError, match="3 rows"):
        code.encode(0, gradients)
    with pytest.raises(UsageError, match="shape"):
        code.decode(sent, 9)
    with pytest.raises(UsageError, match="worker"):
        code.encode(5, gradients[:3])
