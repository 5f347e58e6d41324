"""Sparse calls of arrays on devices: the same bits as on the host, beside their inputs.

The device forgives nothing: see `tests.fake_device`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.sparse import (
    Route,
    SparseVector,
    allgather_chunks,
    reduce_scatter_chunks,
    topk_allreduce,
)
from closeranks.errors import Disagreement, UsageError
from tests.fake_device import FakeArray, FakeDevice
from tests.mpi.lent import Lent, lend

DTYPES = ["f4", "f8", "i8"]
#: Which ranks have their arrays on the device.
RANKS = ["all", "odd", "first"]


@pytest.fixture
def known(comm: MPI.Intracomm | None) -> Iterator[Lent | None]:
    """The ranks and a fake device; None on the ranks left out."""
    yield from lend(comm, FakeDevice())


class Side(NamedTuple):
    """Where this rank has its arrays: as they are, or on the device with gaps."""

    fake: FakeDevice
    is_device: bool
    has_gaps: bool

    def put(self, array: Any) -> Any:
        if not self.is_device:
            return array
        if not self.has_gaps or array.ndim == 0:
            return self.fake.array(array)
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1] + 1), 99, array.dtype)
        wide[..., 1::2] = array
        return self.fake.array(wide)[..., 1::2]

    def check(self, found: Any, wanted: Any) -> None:
        """Compare bits, and see where the result lies."""
        assert isinstance(found, FakeArray) == self.is_device
        there = found.get() if self.is_device else found
        assert (there.dtype, there.shape) == (wanted.dtype, wanted.shape)
        assert there.tobytes() == wanted.tobytes()


def side(lent: Lent, ranks: str, has_gaps: bool = False) -> Side:
    rank = lent.comm.rank
    is_device = ranks == "all" or (rank % 2 == 1 if ranks == "odd" else rank == 0)
    return Side(lent.fake, is_device, has_gaps)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ["auto", "split", "doubling", "dense"])
def test_sums_of_sparse_vectors(known: Lent, ranks: str, dtype: str, algorithm: str) -> None:
    comm = known.comm
    draw = np.random.default_rng(comm.rank)
    for has_gaps in (False, True):
        here = side(known, ranks, has_gaps)
        for nnz, width in ((200, 0), (200, 1), (300, 3), (0, 0), (5 * comm.rank, 2)):
            indices = draw.integers(0, 1000, nnz)
            values = (10 * draw.standard_normal((nnz, width) if width else nnz)).astype(dtype)
            wanted = comm.Allreduce_sparse(SparseVector(indices, values, 1000), algorithm=algorithm)
            vector = SparseVector(here.put(indices), here.put(values), 1000)
            found = comm.Allreduce_sparse(vector, algorithm=algorithm)
            here.check(found.indices, wanted.indices)
            here.check(found.values, wanted.values)
            here.check(found.to_dense(), wanted.to_dense())


def test_indices_and_values_may_lie_apart(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    indices, values = np.array([9, comm.rank, 3]), np.array([1.5, 2, 3])
    wanted = comm.Allreduce_sparse(SparseVector(indices, values, 20), cr.MEAN)
    here, there = Side(fake, False, False), Side(fake, True, False)
    for one, other in ((here, there), (there, here)):
        vector = SparseVector(one.put(indices), other.put(values), 20)
        found = comm.Allreduce_sparse(vector, cr.MEAN)
        one.check(found.indices, wanted.indices)
        other.check(found.values, wanted.values)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_largest_entries(known: Lent, ranks: str, dtype: str) -> None:
    comm = known.comm
    draw = np.random.default_rng(comm.rank)
    for n, k in ((500, 20), (500, 0), (0, 0), (7, 7)):
        here = side(known, ranks, has_gaps=k > 7)
        x, kept = draw.standard_normal((2, n)).astype(dtype)
        for residual in (None, kept):
            vector, rest = topk_allreduce(comm, x, k, residual)
            given = None if residual is None else here.put(residual)
            found, left = topk_allreduce(comm, here.put(x), k, given)
            here.check(found.indices, vector.indices)
            here.check(found.values, vector.values)
            here.check(left, rest)
        far = Side(known.fake, not here.is_device, False)
        found, left = topk_allreduce(comm, here.put(x), k, far.put(kept))
        here.check(found.values, vector.values)
        here.check(left, rest)


def chunk(number: int, rank: int, dtype: str) -> Any:
    shape = [(), (3,), (2, number), (0, 2)][number % 4]
    return (np.random.default_rng([number, rank]).standard_normal(shape) * 10).astype(dtype)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ["flat", "two_hops"])
def test_chunks(known: Lent, ranks: str, dtype: str, algorithm: str) -> None:
    comm = known.comm
    here = side(known, ranks, has_gaps=True)
    owner = np.arange(9) % comm.size  # chunk 8 is for nobody
    wanted = np.random.default_rng(3).random((9, comm.size)) < 0.6
    wanted[8] = False
    given: dict[int, Any] = {
        c: chunk(c, 0, dtype) for c in np.flatnonzero(owner == comm.rank).tolist()
    }
    there = {number: here.put(one) for number, one in given.items()}
    for _ in range(2):  # the second time layouts are known
        want = allgather_chunks(comm, given, owner, wanted, algorithm=algorithm)
        found = allgather_chunks(comm, there, owner, wanted, algorithm=algorithm)
        assert list(found) == list(want)
        for number, one in found.items():
            here.check(one, want[number])
    parts = {c: chunk(c, comm.rank, dtype) for c in np.flatnonzero(wanted[:, comm.rank]).tolist()}
    there = {number: here.put(one) for number, one in parts.items()}
    for op in (MPI.SUM, MPI.MAX):
        want = reduce_scatter_chunks(comm, parts, owner, wanted, op, algorithm=algorithm)
        found = reduce_scatter_chunks(comm, there, owner, wanted, op, algorithm=algorithm)
        assert list(found) == list(want)
        beside = here if parts else Side(known.fake, False, False)
        for number, one in found.items():
            beside.check(one, want[number])


def test_chunks_lie_where_a_rank_gives_one(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    owner, wanted = np.zeros(2, int), np.ones((2, comm.size), bool)
    given: dict[int, Any] = {0: np.ones(3), 1: fake.array(np.arange(2.0))}
    found = allgather_chunks(comm, given if comm.rank == 0 else {}, owner, wanted)
    here = Side(fake, comm.rank == 0, False)
    here.check(found[0], np.ones(3))
    here.check(found[1], np.arange(2.0))


def test_chunks_of_types_that_a_device_lacks_stay_on_the_host(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    owner, wanted = np.arange(comm.size), np.ones((comm.size, comm.size), bool)
    day = np.array(["2026-01-02"], "M8[D]")
    mine: Any = day if comm.rank == 0 else fake.array([1.0])
    found = allgather_chunks(comm, {comm.rank: mine}, owner, wanted)
    assert isinstance(found[0], np.ndarray)
    assert found[0] == day
    for number in range(1, comm.size):
        Side(fake, comm.rank > 0, False).check(found[number], np.array([1.0]))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ["flat", "two_hops"])
def test_routes(known: Lent, ranks: str, dtype: str, algorithm: str) -> None:
    comm = known.comm
    draw = np.random.default_rng(comm.rank)
    for tokens, shape in ((6 + comm.rank, (4,)), (5, ()), (3 * (comm.rank % 2), (2, 3)), (4, (0,))):
        here = side(known, ranks, has_gaps=len(shape) == 1)
        to = draw.integers(-1, comm.size, (tokens, 2))
        x = (10 * draw.standard_normal((tokens, *shape))).astype(dtype)
        route = Route(comm, to, algorithm=algorithm)
        there = Route(comm, here.put(to), algorithm=algorithm)
        assert there.tokens.tolist() == route.tokens.tolist()
        arrived = route.dispatch(x)
        here.check(there.dispatch(here.put(x)), arrived)
        here.check(there.combine(here.put(arrived)), route.combine(arrived))
        to = draw.integers(-1, comm.size, (route.arrived, 2))
        further, onward = route.then(to), there.then(here.put(to))
        arrived = further.dispatch(arrived)
        here.check(onward.combine(here.put(arrived)), further.combine(arrived))


def test_work_on_another_stream(known: Lent) -> None:
    """Inputs are waited for; results come in the order of the stream, inputs are free again."""
    comm, fake = known.comm, known.fake
    all_of_it = Side(fake, True, False)
    route = Route(comm, np.full((2, 1), (comm.rank + 1) % comm.size))
    owner, wanted = np.arange(comm.size), np.ones((comm.size, comm.size), bool)
    with fake.using(fake.stream(0)):
        indices, values, x = fake.array([0]), fake.array([0.0]), fake.array(np.zeros(2))
        indices.set([5])
        vector = SparseVector(indices, values, 9)
        for value in (2.0, 3.0):
            values.set([value])
            x.set([value, 0])
            total = comm.Allreduce_sparse(vector)
            largest, rest = topk_allreduce(comm, x, 1)  # type: ignore[arg-type]
            chunks = allgather_chunks(comm, {comm.rank: x}, owner, wanted)
            arrived = route.dispatch(x)
            results: list[tuple[Any, Any]] = [
                (total.values, [value * comm.size]),
                (total.indices, [5]),
                (largest.values, [value * comm.size]),
                (rest, [0.0, 0.0]),
                *((one, [value, 0]) for one in chunks.values()),
                (arrived, [value, 0.0]),
            ]
            values.set([-9.0])  # what was sent may be written again
            x.set([-9.0, -9.0])
            assert arrived.peek().tolist() != [value, 0.0]  # type: ignore[attr-defined]
            for found, want in results:
                all_of_it.check(found, np.array(want, found.dtype))


def test_calls_are_counted(known: Lent) -> None:
    comm, fake = known.comm, known.fake
    before = comm.statistics().device.get("whole", 0)
    vector = SparseVector(fake.array([1]), fake.array([1.0]), 3)
    comm.Allreduce_sparse(vector)
    topk_allreduce(comm, fake.array(np.ones(3)), 1)  # type: ignore[arg-type]
    comm.Allreduce_sparse(SparseVector([1], [1.0], 3))
    assert comm.statistics().device["whole"] == before + 2


def elsewhere() -> Any:
    """An array in memory that no device of this process has."""
    made = FakeDevice().array(np.zeros(2))
    made._pointer += 1 << 50
    return made


CALLS = ["topk", "residual", "allgather", "reduce_scatter", "dispatch", "combine", "destinations"]


def call(comm: cr.Communicator, name: str, array: Any) -> None:
    """Make a call with an array of two numbers."""
    owner, wanted = np.arange(comm.size), np.ones((comm.size, comm.size), bool)
    match name:
        case "topk":
            topk_allreduce(comm, array, 1)
        case "residual":
            topk_allreduce(comm, np.zeros(2), 1, array)
        case "allgather":
            allgather_chunks(comm, {comm.rank: array}, owner, wanted)
        case "reduce_scatter":
            reduce_scatter_chunks(comm, dict.fromkeys(range(comm.size), array), owner, wanted)
        case "dispatch":
            Route(comm, np.full((2, 1), comm.rank)).dispatch(array)
        case "combine":
            Route(comm, np.full((2, 1), comm.rank)).combine(array)
        case "destinations":
            Route(comm, array)


@pytest.mark.parametrize("name", CALLS)
def test_memory_of_another_process_is_refused_on_all_ranks(known: Lent, name: str) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match="memory of no device of this process") as caught:
            call(known.comm, name, elsewhere())
        assert caught.value.is_heard  # else the others would wait


@pytest.mark.parametrize("name", CALLS)
def test_a_rank_with_a_wrong_array_lets_nobody_wait(known: Lent, name: str) -> None:
    if known.comm.size == 1:
        return
    array = elsewhere() if known.comm.rank == 0 else np.zeros(2)
    if name == "destinations" and known.comm.rank:
        array = np.zeros((2, 1), int)
    with pytest.raises(UsageError if known.comm.rank == 0 else Disagreement, match="no device"):
        call(known.comm, name, array)
    assert known.comm.allreduce(1) == known.comm.size


def test_what_ranks_disagree_on_is_said_wherever_arrays_lie(known: Lent) -> None:
    comm = known.comm
    if comm.size == 1:
        return
    here = side(known, "odd")
    kind = "f4" if comm.rank == 0 else "f8"
    vector = SparseVector(here.put(np.array([1])), here.put(np.ones(1, kind)), 3)
    with pytest.raises(Disagreement, match="float32"):
        comm.Allreduce_sparse(vector)
    with pytest.raises(Disagreement, match="float32"):
        topk_allreduce(comm, here.put(np.ones(3, kind)), 1)
    with pytest.raises(Disagreement, match="float32"):
        Route(comm, np.zeros((2, 1), int)).dispatch(here.put(np.ones(2, kind)))


def test_indices_that_were_changed_are_refused(known: Lent) -> None:
    indices = known.fake.array([1, 2])
    vector = SparseVector(indices, [1.0, 2.0], 5)
    indices.set([1, 7])
    with pytest.raises(UsageError, match="index 7 of a vector of length 5"):
        known.comm.Allreduce_sparse(vector)
