"""`Allreduce_sparse` on real ranks, against a dictionary, in random sequences."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch.open_plans import open_plans_of
from closeranks.collectives.sparse import SparseVector, pair_reduction
from closeranks.collectives.sparse.canonical_pairs import canonical
from closeranks.collectives.sparse.pair_plans import problem_of
from closeranks.errors import Disagreement, Unavailable, UsageError

World = cr.Communicator
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]
OPS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
#: Dense vectors of such lengths are small.
SHORT = (1, 7, 1000, 60_000)
LONG = (1 << 26, (1 << 31) + 5, (1 << 32) + 5, 1 << 40)
PATTERNS = ("random", "equal", "disjoint", "clustered", "some empty", "all empty", "full")


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _indices(draw: np.random.Generator, pattern: str, length: int, rank: int, size: int) -> Any:
    count = min(int(draw.choice([1, 5, 300, 3000])), 2 * length)
    if pattern == "full":
        return draw.permutation(min(length, 3000))
    if pattern == "all empty" or (pattern == "some empty" and rank % 2):
        return np.empty(0, np.int64)
    if pattern == "equal":
        return np.random.default_rng(length).integers(0, length, 200)
    if pattern == "disjoint":
        return np.arange(rank, min(length, 3000), size)
    if pattern == "clustered":  # around what 24, 31, 32 bits hold, if there is such an index
        edge = max((1 << bits for bits in (0, 24, 31, 32) if 1 << bits < length), default=0)
        return edge + draw.integers(-min(edge, 50), min(length - edge, 50), count)
    return draw.integers(0, length, count)


def _reference(vectors: list[tuple[Any, Any]], op: str) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for indices, values in vectors:
        is_short = values.dtype.itemsize == 2
        wide = values.astype(np.float32) if is_short else values
        for index, value in zip(indices.tolist(), wide, strict=True):
            with np.errstate(all="ignore"):
                found[index] = OPS[op](found[index], value) if index in found else value
    return found


def _close(found: Any, wanted: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "iu":
        return bool((found == wanted).all())
    tolerance = {2: 2e-2, 4: 1e-5, 8: 1e-12}[dtype.itemsize]
    one, other = found.astype(float), wanted.astype(float)
    return bool(np.allclose(one, other, rtol=tolerance, equal_nan=True))


@pytest.mark.parametrize("seed", range(6))
def test_random_sequences(world: World, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rank, size = world.rank, world.size
    for _ in range(15):
        length = int(draw.choice(SHORT + LONG))
        name, op = str(draw.choice(DTYPES)), str(draw.choice(list(OPS)))
        pattern, width = str(draw.choice(PATTERNS)), int(draw.choice([0, 0, 1, 3]))
        known = ["auto", "split", "doubling", *(["dense"] if length in SHORT else [])]
        algorithm, dtype = str(draw.choice(known)), _dtype(name)
        vectors = []
        for other in range(size):
            indices = _indices(draw, pattern, length, other, size)
            shape = (len(indices), width) if width else (len(indices),)
            vectors.append((indices, draw.integers(1, 3, shape).astype(dtype)))
        given = [array.copy() for array in vectors[rank]]
        vector = SparseVector(*vectors[rank], length)
        found = world.Allreduce_sparse(vector, getattr(MPI, op), algorithm=algorithm)
        wanted = _reference(vectors, op)
        where = (length, name, op, pattern, width, algorithm)
        assert found.indices.tolist() == sorted(wanted), where
        assert found.indices.dtype == np.int64
        assert (found.length, found.dtype) == (length, dtype)
        expected = np.array([wanted[index] for index in sorted(wanted)]).astype(dtype)
        assert _close(found.values.reshape(-1), expected.reshape(-1), dtype), where
        every = world.allgather(found.values.tobytes())
        assert len(set(every)) == 1, where
        for array, before in zip(vectors[rank], given, strict=True):
            assert array.tobytes() == before.tobytes()


@pytest.mark.parametrize("algorithm", ["auto", "split", "doubling", "dense"])
def test_what_cancels_stays_and_nan_wins(world: World, algorithm: str) -> None:
    sign = 1.0 if world.rank % 2 else -1.0
    values = np.array([sign, np.nan if world.rank == 0 else 1.0])
    given = SparseVector([4, 2], values, 9)
    found = world.Allreduce_sparse(given, algorithm=algorithm)
    assert found.indices.tolist() == [2, 4]
    assert np.isnan(found.values[0])
    assert found.values[1] == sum(1.0 if rank % 2 else -1.0 for rank in range(world.size))
    for op in (MPI.MIN, MPI.MAX):
        assert np.isnan(world.Allreduce_sparse(given, op, algorithm=algorithm).values[0])


def test_the_mean_is_over_all_ranks(world: World) -> None:
    mine = SparseVector([3] if world.rank == 0 else [], np.ones(int(world.rank == 0)), 5)
    for algorithm in ("auto", "split", "doubling", "dense"):
        found = world.Allreduce_sparse(mine, cr.MEAN, algorithm=algorithm)
        assert found.values.tolist() == [1 / world.size]


def test_results_are_the_callers(world: World) -> None:
    ours = SparseVector([world.rank], [1.0], 99)
    first = world.Allreduce_sparse(ours)
    kept = first.values.copy()
    world.Allreduce_sparse(SparseVector([5], [7.0], 99))
    assert first.values.tolist() == kept.tolist()
    first.values += 1


def test_a_deterministic_sum_is_in_rank_order(comm: MPI.Intracomm) -> None:
    draw = np.random.default_rng(3)
    vectors = [draw.standard_normal(50).astype(np.float32) for _ in range(comm.size)]
    wanted = vectors[0].copy()
    for other in vectors[1:]:
        wanted += other
    with cr.init(comm, deterministic=True) as world:
        given = SparseVector(np.arange(50), vectors[world.rank], 1 << 30)
        found = world.Allreduce_sparse(given, algorithm="split")
    assert found.values.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 8}, {"dtype": np.float32}, {"width": 2}, {"op": MPI.MAX},
        {"algorithm": "split"},
    ],
    ids=lambda wrong: next(iter(wrong)),
)  # fmt: skip
def test_ranks_that_differ_are_named_on_all(world: World, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"length": 7, "dtype": np.float64, "width": 1, "op": MPI.SUM}
    given |= {"algorithm": "doubling"} | (wrong if world.rank == world.size - 1 else {})
    vector = SparseVector([1], np.ones((1, given["width"]), given["dtype"]), given["length"])
    if world.size == 1:
        return
    with pytest.raises(Disagreement, match="Allreduce_sparse"):
        world.Allreduce_sparse(vector, given["op"], algorithm=given["algorithm"])
    again = SparseVector([1], [1.0], 7)
    assert world.Allreduce_sparse(again).values.tolist() == [world.size]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, 2, 3],), "SparseVector"),
        ((SparseVector([1], ["a"], 3),), "values of"),
        ((SparseVector([1], [1j], 3),), "complex128"),
        ((SparseVector([1], [1.0], 3), MPI.BOR), "op"),
        ((SparseVector([1], [1.0], 3), "SUM"), "op"),
        ((SparseVector([1], [1], 3), cr.MEAN), "MEAN of int64"),
        ((SparseVector([1], [1.0], 3), MPI.SUM, "ring"), "one of auto, doubling, split, dense"),
    ],
    ids=range(7),
)
def test_wrong_arguments_of_all_are_named(
    world: World, arguments: tuple[Any, ...], words: str
) -> None:
    vector: Any = arguments[0]
    op: Any = arguments[1] if len(arguments) > 1 else MPI.SUM
    algorithm: Any = arguments[2] if len(arguments) > 2 else "auto"
    with pytest.raises(UsageError) as caught:
        world.Allreduce_sparse(vector, op, algorithm=algorithm)
    assert words in str(caught.value)


def test_a_rank_with_wrong_arguments_lets_nobody_wait(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    given: Any = "none" if comm.rank == 0 else SparseVector([1], [1.0], 3)
    with pytest.raises((UsageError, Disagreement)) as caught, cr.init(comm) as world:
        world.Allreduce_sparse(given)
    assert isinstance(caught.value, UsageError) == (comm.rank == 0)


def test_calls_and_bytes_are_counted(world: World) -> None:
    before = world.statistics()
    draw = np.random.default_rng(world.rank)
    vector = SparseVector(draw.integers(0, 1 << 20, 5000), np.ones(5000, np.float32), 1 << 20)
    world.Allreduce_sparse(vector, algorithm="split")
    after = world.statistics()
    assert after.algorithms["allreduce_sparse"]["split"] == 1
    sent = sum(after.bytes_per_level.values()) - sum(before.bytes_per_level.values())
    assert (sent > 0) == (world.size > 1)
    assert sent < 4 * (1 << 20)


def test_many_repeats_of_an_index(world: World) -> None:
    count = 200_000
    vector = SparseVector(np.full(count, 5), np.ones(count, np.float32), 9)
    found = world.Allreduce_sparse(vector)
    assert found.indices.tolist() == [5]
    assert found.values.tolist() == [count * world.size]


@pytest.mark.parametrize("algorithm", ["split", "doubling", "dense"])
def test_indices_that_were_changed_are_refused(world: World, algorithm: str) -> None:
    indices = np.array([0, 7])
    vector = SparseVector(indices, np.ones(2), 10)
    indices -= 5
    with pytest.raises(UsageError, match="index -5"):
        world.Allreduce_sparse(vector, algorithm=algorithm)


def test_a_deterministic_communicator_always_splits(comm: MPI.Intracomm) -> None:
    with cr.init(comm, deterministic=True) as world:
        for count in (1, 1000, 20_000):
            world.Allreduce_sparse(SparseVector(np.arange(count), np.ones(count), 20_000))
        assert set(world.statistics().algorithms["allreduce_sparse"]) == {"split"}


@pytest.mark.parametrize("length", [3000, 1 << 20, 1 << 40])
def test_explain_names_what_a_call_takes(world: World, length: int) -> None:
    service = world.membership.service
    open_plans_of(service).kernel_s_per_byte = 0.0  # else each rank has its own
    for count, width in ((0, 1), (1, 1), (900, 1), (900, 4)):
        values = np.ones((count, width), np.float32)
        vector = SparseVector(np.arange(count) * (length // 900), values, length)
        found = world.explain("allreduce_sparse", nnz=count, length=length, width=width)
        before = world.statistics().algorithms.get("allreduce_sparse", {})
        world.Allreduce_sparse(vector)
        after = world.statistics().algorithms["allreduce_sparse"]
        assert after.get(found.algorithm, 0) == before.get(found.algorithm, 0) + 1, found
        assert found.nbytes == values.nbytes
        assert set(found.candidates) == {"doubling", "split", "dense"}
        assert (found.candidates["dense"].objection is None) == (length < 1 << 40)
        prices = [one.predicted_s for one in found.candidates.values() if not one.objection]
        assert found.predicted_s == min(price for price in prices if price is not None)
        assert found.algorithm in str(found)
        # What is foretold without a world is what calls ask for.
        pairs = canonical(vector.indices, values.reshape(-1), length, width, "SUM")
        asked = problem_of(service, "allreduce_sparse", pairs, count * world.size)
        known = pair_reduction._foretold_problem(service, count, length, pairs.row_bytes)
        assert vars(known) == vars(asked)


def test_explain_says_why_there_is_no_choice(comm: MPI.Intracomm) -> None:
    with cr.init(comm, deterministic=True) as world:
        found = world.explain("allreduce_sparse", nnz=10, length=10)
    assert found.algorithm == "split"
    assert "rank order" in str(found.candidates["dense"].objection)


def test_explain_refuses_other_vectors(world: World) -> None:
    def refused(words: str, *arguments: Any, **keywords: Any) -> None:
        with pytest.raises(UsageError, match=words):
            world.explain(*arguments, **keywords)

    known: dict[str, Any] = {"nnz": 3, "length": 9}
    refused("nbytes of allreduce_sparse; pass nnz=", "allreduce_sparse", 12, **known)
    refused("nnz is None", "allreduce_sparse", length=9)
    refused("length is -1", "allreduce_sparse", nnz=3, length=-1)
    refused("width is 0", "allreduce_sparse", **known, width=0)
    refused("complex128", "allreduce_sparse", dtype="complex128", **known)
    refused("nnz, length or width of allreduce;", "allreduce", 12, nnz=3)
    refused("nbytes is None", "allreduce")


def test_a_whole_vector_without_room_is_refused_on_all(world: World) -> None:
    vector = SparseVector([world.rank], [1.0], 1 << 45)
    with pytest.raises(Unavailable, match=f"{1 << 48} bytes of a whole vector .*'split'"):
        world.Allreduce_sparse(vector, algorithm="dense")
    assert world.Allreduce_sparse(vector).nnz == world.size, "the communicator goes on"


def test_room_is_what_every_rank_has(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    last = world.size - 1
    monkeypatch.setattr(pair_reduction, "_ASKED_BYTES", 8000)
    monkeypatch.setattr(pair_reduction, "_is_room", lambda *_: world.rank != last)
    vector = SparseVector(np.arange(1000), np.ones(1000), 1000)
    with pytest.raises(Unavailable, match=f"8000 bytes of a whole vector on rank {last}"):
        world.Allreduce_sparse(vector, algorithm="dense")
    monkeypatch.setattr(pair_reduction, "_chosen", lambda *_: "dense")
    before = world.statistics().algorithms.get("allreduce_sparse", {}).get("split", 0)
    assert world.Allreduce_sparse(vector).values.tolist() == [world.size] * 1000
    assert world.statistics().algorithms["allreduce_sparse"]["split"] == before + 1
    monkeypatch.setattr(pair_reduction, "_ASKED_BYTES", 8001)
    assert world.Allreduce_sparse(vector, algorithm="dense").nnz == 1000, "short: nobody asks"


def test_room_ends_at_a_limit_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = canonical(np.array([1]), np.ones(1), 1 << 20, 1, "SUM")
    assert pair_reduction._is_room(pairs, 1)
    assert not pair_reduction._is_room(pairs, 1 << 30), "of all ranks of a node"

    def refuse(*_arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", refuse)
    assert not pair_reduction._is_room(pairs, 1)


@pytest.mark.parametrize("algorithm", ["doubling", "dense"])
def test_other_algorithms_are_deterministic_in_an_order_of_their_own(
    comm: MPI.Intracomm, algorithm: str
) -> None:
    values = np.random.default_rng(comm.rank).standard_normal(500).astype(np.float32)
    found = set()
    with cr.init(comm, deterministic=True) as world:
        for _ in range(3):
            given = SparseVector(np.arange(500), values, 500)
            found.add(world.Allreduce_sparse(given, algorithm=algorithm).values.tobytes())
    assert len(found) == 1
