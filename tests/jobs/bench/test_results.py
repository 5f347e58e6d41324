"""Inputs are exact in any order, and a wrong result never passes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from closeranks.errors import UsageError
from closeranks.jobs.bench.measuring.collective_facts import (
    DTYPES,
    OPS,
    as_dtype,
    check_op,
    equal,
    pattern,
    uneven,
    whole,
)
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES

Array = npt.NDArray[Any]

COMBINE = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def allowed(op: str, dtype: str) -> bool:
    try:
        check_op(op, dtype)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 200, 700])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_order_of_summation_gives_the_expected(dtype: str, ranks: int) -> None:
    inputs = pattern(ranks, dtype, "sum")
    rows = [inputs.given(rank, 3, 300) for rank in range(ranks)]
    expected = inputs.reduced(ranks, 3, 300)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(ranks)
        total = rows[order[0]].copy()
        for rank in order[1:]:
            total = total + rows[rank]
        np.testing.assert_array_equal(total, expected)
    assert len(np.unique(expected.astype(np.complex128))) > 1 or ranks == 700


REDUCTIONS = [
    (op, dtype)
    for op in sorted(COMBINE)
    for dtype in ("int8", "uint64", "float16", "bfloat16", "float64")
    if allowed(op, dtype)
]


@pytest.mark.parametrize(("op", "dtype"), REDUCTIONS)
def test_every_reduction(op: str, dtype: str) -> None:
    for ranks in (1, 2, 5):
        inputs = pattern(ranks, dtype, op)
        total = inputs.given(0, 0, 251)
        for rank in range(1, ranks):
            total = COMBINE[op](total, inputs.given(rank, 0, 251))
        np.testing.assert_array_equal(total, inputs.reduced(ranks, 0, 251))


@pytest.mark.parametrize("op", ["land", "lor", "lxor"])
def test_logical_reductions_have_both_results(op: str) -> None:
    inputs = pattern(4, "int32", op)
    rows = np.array([inputs.given(rank, 0, 251) for rank in range(4)]).astype(bool)
    combine = {"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor}[op]
    expected = inputs.reduced(4, 0, 251)
    np.testing.assert_array_equal(combine.reduce(rows), expected)
    assert set(expected.tolist()) == {0, 1}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_mean_is_exact(dtype: str, ranks: int) -> None:
    inputs = pattern(ranks, dtype, "mean")
    rows = np.array([inputs.given(rank, 0, 251).astype(np.float64) for rank in range(ranks)])
    np.testing.assert_array_equal(rows.mean(axis=0), inputs.reduced(ranks, 0, 251))


def test_unknown_types_and_operations() -> None:
    assert as_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)
    with pytest.raises(UsageError, match=r"unknown type 'float8'; choose .*bfloat16"):
        as_dtype("float8")
    with pytest.raises(UsageError, match="unknown operation 'add'; choose sum"):
        check_op("add", "int8")
    with pytest.raises(UsageError, match="band of float32 does not exist"):
        check_op("band", "float32")
    with pytest.raises(UsageError, match="mean of int8 does not exist"):
        check_op("mean", "int8")
    assert all(allowed(op, "int32") for op in OPS if op != "mean")


def test_blocks() -> None:
    assert whole(10, 3) == (10, 0, 0)
    assert equal(10, 3) == (4, 4, 4)
    assert uneven(10, 3) == (3, 3, 4)
    assert uneven(2, 4) == (0, 1, 0, 1)


def reference(name: str, given: list[Array | None], counts: tuple[int, ...]) -> list[Array | None]:
    """What each rank must receive, written down once more and differently."""
    ranks = len(given)
    ends = np.cumsum(counts)
    cut = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    some = [one for one in given if one is not None]
    if name in ("allgather", "allgatherv"):
        return [np.concatenate(some)] * ranks
    if name in ("gather", "gatherv"):
        return [np.concatenate(some), *[None] * (ranks - 1)]
    if name in ("scatter", "scatterv"):
        return [some[0][part] for part in cut]
    if name == "alltoall":
        return [np.concatenate([one[part] for one in some]) for part in cut]
    if name == "allreduce":
        return [np.sum(some, axis=0)] * ranks
    if name == "reduce":
        return [np.sum(some, axis=0), *[None] * (ranks - 1)]
    if name in ("reduce_scatter", "reduce_scatter_block"):
        return [np.sum(some, axis=0)[part] for part in cut]
    if name == "scan":
        return list(np.cumsum(some, axis=0))
    return [None, *np.cumsum(some, axis=0)[:-1]]


@pytest.mark.parametrize("name", sorted(set(COLLECTIVES) - {"barrier", "bcast", "alltoallv"}))
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("nbytes", [8, 1000, 4096])
def test_expected_results(name: str, ranks: int, nbytes: int) -> None:
    collective = COLLECTIVES[name]
    inputs = pattern(ranks, "int32", "sum")
    problems = [collective.problem(rank, nbytes, inputs, ranks) for rank in range(ranks)]
    wanted = reference(name, [collective.send(p) for p in problems], problems[0].counts)
    for problem, want in zip(problems, wanted, strict=True):
        expected = collective.expected(problem)
        if want is None:
            assert expected is None
            continue
        assert expected is not None
        np.testing.assert_array_equal(expected, want)
        assert collective.length(problem) == len(expected)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("nbytes", [8, 1000])
def test_alltoallv_counts_fit_together(ranks: int, nbytes: int) -> None:
    collective = COLLECTIVES["alltoallv"]
    inputs = pattern(ranks, "int32", "sum")
    problems = [collective.problem(rank, nbytes, inputs, ranks) for rank in range(ranks)]
    for here in problems:
        sent = [there.outgoing() for there in problems]
        assert here.incoming() == [counts[here.rank] for counts in sent]
        parts = []
        for there, counts in zip(problems, sent, strict=True):
            start = sum(counts[: here.rank])
            given = collective.send(there)
            assert given is not None
            parts.append(given[start : start + counts[here.rank]])
        expected = collective.expected(here)
        assert expected is not None
        np.testing.assert_array_equal(expected, np.concatenate(parts))
        assert len(expected) == here.total


def test_a_size_is_rounded_up_to_whole_blocks() -> None:
    inputs = pattern(7, "float32", "sum")
    sizes = {
        name: COLLECTIVES[name].problem(0, 65536, inputs, 7).total * 4
        for name in ("allreduce", "allgather", "allgatherv", "reduce_scatter", "alltoallv")
    }
    assert sizes["allgather"] == 65548
    assert {size for name, size in sizes.items() if name != "allgather"} == {65536}
