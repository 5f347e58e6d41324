"""What ``sparse`` measures, and how its results are checked, without ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from closeranks.jobs.bench.benches import sparse
from closeranks.jobs.bench.benches.registration import benchmarks
from closeranks.jobs.bench.measuring.session import BenchRequest


def request(**own: Any) -> BenchRequest:
    known = {"density": "0.1,1", "nnz": None, "topk": None, **own}
    return BenchRequest(("sparse",), (64, 4000), own=known, algorithms=("auto", "split"))


def test_top_k_has_rows_of_its_own_where_it_is_asked_for() -> None:
    items = benchmarks()["sparse"].items
    named = [("auto", 64), ("split", 64), ("auto", 4000), ("split", 4000)]
    assert [(one.algorithm, one.nbytes) for one in items(request(), "sparse")] == named
    found = [(one.algorithm, one.nbytes) for one in items(request(topk="0.01"), "sparse")]
    assert found == [*named, ("topk", 64), ("topk", 4000)]


def test_k_is_a_share_of_the_entries() -> None:
    asked = request(topk="0.01,0.5,1", nnz=7)
    assert sparse._counts(asked, 1000, "topk") == [10, 500, 1000]
    assert sparse._counts(asked, 1000, "auto") == [7]
    assert sparse._counts(request(), 1000, "split") == [100, 1000]
    assert sparse._counts(request(topk="0.01"), 5, "topk") == [1], "at least one"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("most", [1, 3, 1000])
def test_the_largest_entries_are_those_of_a_sort(dtype: str, most: int) -> None:
    x = np.random.default_rng(most).integers(-most, most + 1, 200).astype(dtype)
    order = np.lexsort((np.arange(200), -np.abs(x)))
    for k in (1, 2, 50, 199, 200):
        assert sparse._largest(x, k).tolist() == sorted(order[:k].tolist()), "ties: lower first"
