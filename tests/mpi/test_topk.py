"""`topk_allreduce` on real ranks, against NumPy, in random sequences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.sparse import topk_allreduce
from closeranks.errors import Disagreement, UsageError

World = cr.Communicator


def _first(magnitudes: Any, indices: Any, k: int) -> Any:
    """Choose the k largest, the lower index first; a NaN is the largest."""
    ranked = np.where(np.isnan(magnitudes), np.inf, magnitudes)
    is_nan = ~np.isnan(magnitudes)
    return np.sort(indices[np.lexsort((indices, -ranked, is_nan))[:k]])


def _expected(vectors: list[Any], k: int) -> tuple[Any, Any, list[Any]]:
    """Compute result and residuals of all ranks."""
    offers: list[Any] = []
    everything: dict[int, float] = {}
    for vector in vectors:
        wide = vector.astype(float)
        offer = _first(np.abs(wide), np.arange(len(vector)), k)
        offers.append(offer)
        for index in offer.tolist():
            everything[index] = everything.get(index, 0) + wide[index]
    indices = np.array(sorted(everything), np.int64)
    sums = np.array([everything[index] for index in indices.tolist()])
    chosen = _first(np.abs(sums), indices, k)
    residuals = []
    for vector, offer in zip(vectors, offers, strict=True):
        rest = vector.copy()
        rest[np.intersect1d(offer, chosen)] = 0
        residuals.append(rest)
    return chosen, np.array([everything[index] for index in chosen.tolist()]), residuals


def _vector(draw: np.random.Generator, kind: str, n: int, dtype: Any) -> Any:
    if kind == "ties":
        return draw.integers(-2, 3, n).astype(dtype)
    if kind == "one place":
        found = np.zeros(n)
        found[: n // 8] = draw.integers(-50, 50, n // 8)
        return found.astype(dtype)
    if kind == "zeros":
        return np.zeros(n, dtype)
    found = draw.integers(-50, 50, n).astype(dtype)
    if kind == "nan" and n:
        found[draw.integers(0, n, 2)] = np.nan
    return found


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", ["ties", "one place", "zeros", "random", "nan"])
def test_random_sequences(world: World, kind: str, name: str) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    draw = np.random.default_rng(len(kind + name))
    for n in (1, 8, 200, 3000):
        residual = None
        for k in (0, 1, n // 10, n // 2, n):
            vectors = [_vector(draw, kind, n, dtype) for _ in range(world.size)]
            mine = vectors[world.rank]
            before = mine.copy()
            found, rest = topk_allreduce(world, mine, k)
            chosen, sums, residuals = _expected(vectors, k)
            assert found.indices.tolist() == chosen.tolist(), (kind, name, n, k)
            np.testing.assert_array_equal(found.values.astype(float), sums.astype(float))
            np.testing.assert_array_equal(rest.astype(float), residuals[world.rank].astype(float))
            assert mine.tobytes() == before.tobytes()
            if residual is not None and kind != "nan" and dtype.itemsize > 2:
                _, carried = topk_allreduce(world, mine, k, residual)
                total = world.allgather(mine + residual)
                np.testing.assert_array_equal(carried, _expected(total, k)[2][world.rank])
            residual = rest


def test_nothing_is_lost(world: World) -> None:
    draw = np.random.default_rng(world.rank)
    n, residual, sent = 500, None, np.zeros(500)
    given = [draw.integers(-9, 9, n).astype(float) for _ in range(20)]
    for x in given:
        found, residual = topk_allreduce(world, x, 25, residual)
        sent[found.indices] += found.values
    whole = np.empty(n)
    world.Allreduce(np.sum(given, axis=0) - residual, whole)
    np.testing.assert_allclose(sent, whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.ones(5), -1), "k is -1"),
        ((np.ones(5), 6), "k is 6"),
        ((np.ones(5), 2.0), "k is 2.0"),
        ((np.ones(5, int), 2), "int64"),
        ((np.ones((5, 1)), 2), "shape (5, 1)"),
        (([1.0], 1), "NumPy array"),
        ((np.ones(5), 2, np.ones(4)), "residual"),
        ((np.ones(5), 2, np.ones(5, np.float32)), "residual of float32"),
    ],
    ids=range(8),
)
def test_wrong_arguments_are_named(world: World, arguments: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        topk_allreduce(world, *arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("what", ["n", "k", "dtype"])
def test_ranks_that_differ_are_named_on_all(world: World, what: str) -> None:
    last = world.rank == world.size - 1
    x = np.ones(9 if last and what == "n" else 8, "f4" if last and what == "dtype" else "f8")
    if world.size == 1:
        return
    with pytest.raises(Disagreement, match="topk_allreduce"):
        topk_allreduce(world, x, 3 if last and what == "k" else 2)


def test_bytes_do_not_depend_on_where_entries_lie(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    n, k, sent = 1 << 18, 1 << 12, []
    draw = np.random.default_rng(comm.rank)
    for span in (n, n // 8):
        x = np.zeros(n, np.float32)
        x[:span] = draw.standard_normal(span)
        with cr.init(comm) as world:
            topk_allreduce(world, x, k)
            sent.append(max(world.allgather(sum(world.statistics().bytes_per_level.values()))))
    assert max(sent) <= 1.3 * min(sent)
