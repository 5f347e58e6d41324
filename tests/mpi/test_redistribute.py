"""`redistribute` on real ranks: bit for bit, and errors on all ranks alike."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks as cr
from closeranks.collectives.shm import shared_arrays
from closeranks.comms.exit import forked_child
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Disagreement, Unavailable
from closeranks.partitioning import (
    Broadcast,
    Layout,
    Mesh,
    Partial,
    Split,
    conversion,
    redistribute,
)
from closeranks.partitioning.redistribution import (
    exchange,
    exchange_rounds,
    part_moves,
    window_exchange,
)
from closeranks.partitioning.redistribution.conversion_plan import Conversion
from closeranks.partitioning.redistribution.message_exchange import MessageExchange
from closeranks.partitioning.redistribution.rank_work import Arrays
from tests.partitioning.redistribution.interpreter import expected, given, kept, value_of
from tests.shares import SEED

World = cr.Communicator
Array = NDArray[Any]
PAIR = np.dtype([("a", "<i4"), ("b", "<f8", (2,))])
KINDS = [np.dtype(kind) for kind in ("f8", "f4", "i8", "u2", "c16", ml_dtypes.bfloat16)]
#: A comm of closeranks inside a node, one that may not use node memory, and mpi4py's.
WAYS = pytest.mark.parametrize("way", ["window", "messages", "plain"])


def seeded(comm: MPI.Intracomm, number: int = 0) -> np.random.Generator:
    """Random numbers of the day, the same on all ranks."""
    day = 0 if SEED == "all" else int(SEED)
    return np.random.default_rng([day, number, comm.size])


def ranks_of(way: str, world: World, patch: pytest.MonkeyPatch) -> Any:
    """Give the communicator of a way."""
    if way == "messages":
        patch.setattr(window_exchange, "can_share", lambda _: False)
    return world.membership.service.plain if way == "plain" else world


def shapes_of(size: int) -> list[tuple[int, ...]]:
    """List the shapes of meshes of so many ranks."""
    two = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    return [(size,), *two]


def topology(size: int, rng: np.random.Generator) -> Topology | None:
    """Make up a machine of up to three nodes, or none."""
    if rng.random() < 0.3:
        return None
    rows = [rng.integers(0, 3, size).tolist(), list(range(size))]
    return Topology.from_groups(("node", "rank"), rows)


def layout(shape: tuple[int, ...], size: int, op: str, rng: np.random.Generator) -> Layout:
    """Make up a layout."""
    sizes = shapes_of(size)[rng.integers(len(shapes_of(size)))]
    axes = {f"x{n}": length for n, length in enumerate(sizes)}
    mesh = Mesh(axes, topology(size, rng), rng.permutation(size) if rng.random() < 0.5 else None)
    hows: list[Any] = [Broadcast(), *map(Split, range(len(shape))), *map(Split, range(len(shape)))]
    hows += [Partial(op)] if op else []
    made = [hows[rng.integers(len(hows))] for _ in sizes]
    cuts = {}
    for axis, length in enumerate(shape):
        parts = prod(n for n, how in zip(sizes, made, strict=True) if how == Split(axis))
        if parts > 1 and rng.random() < 0.3:
            inner = np.sort(rng.integers(0, length + 1, parts - 1)).tolist()
            cuts[axis] = [0, *inner, length]
    return Layout(shape, made, mesh=mesh, cuts=cuts)


def placed(part: Array, dtype: np.dtype[Any], rng: np.random.Generator) -> Array:
    """Give the same numbers in another type, order, and with gaps; perhaps read-only."""
    if dtype.names:
        made = np.zeros(part.shape, dtype)
        made["a"], made["b"] = part, part[..., None]
    else:
        made = part.astype(dtype)
    kind = rng.integers(4)
    if kind == 1 and part.ndim:
        made = np.asfortranarray(made)
    elif kind == 2 and made.ndim:
        wide = np.zeros((*made.shape[:-1], 2 * made.shape[-1] + 1), dtype)
        wide[..., 1::2] = made
        made = wide[..., 1::2]
    elif kind == 3 and made.ndim:
        made = made[::-1].copy()[::-1]
    made.setflags(write=False)
    return made


def numbers(dtype: np.dtype[Any], made: Array) -> Array:
    """Give the neutral elements of int64 as those of a type."""
    if dtype.names or dtype.kind == "c":
        return made
    great, least = made == 2**63 - 1, made == -(2**63)
    found = made.astype(dtype)
    if dtype.kind in "iu":
        found[great], found[least] = np.iinfo(dtype).max, np.iinfo(dtype).min
    else:
        found[great], found[least] = np.inf, -np.inf
    return found


def out_of(shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.Generator) -> Array | None:
    """Give an array for the result, or none."""
    kind = rng.integers(4)
    if kind == 1:
        return np.ones(shape, dtype, order="F")
    if kind == 2 and shape:
        return np.ones((*shape[:-1], 3 * shape[-1]), dtype)[..., ::3]
    return None


def op_for(dtype: np.dtype[Any], rng: np.random.Generator) -> str:
    """Choose a reduction that elements take."""
    if dtype.names:
        return ""
    return "sum" if dtype.kind == "c" else str(rng.choice(["sum", "min", "max"]))


@WAYS
@pytest.mark.parametrize("seed", range(6))
def test_random_sequences_of_conversions(
    world: World, way: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_moves, "_LEAST_SHARE", 1)
    comm = ranks_of(way, world, monkeypatch)
    shared = seeded(comm, seed)
    for _ in range(12):
        shape = tuple(int(n) for n in shared.choice([0, 1, 2, 5, 7, 12], shared.integers(0, 4)))
        dtype = [*KINDS, PAIR][shared.integers(len(KINDS) + 1)]
        op = op_for(dtype, shared)
        layouts = [layout(shape, comm.size, op, shared) for _ in range(3)]
        limit = None if shared.random() < 0.6 else int(shared.integers(2, 9)) * dtype.itemsize
        parts, whole = given(layouts[0], shared, 0, 8)
        for source, target in pairwise(layouts):
            convert(comm, (source, target), (parts, whole), dtype, limit)
            parts = expected(target, whole)


def convert(
    comm: Any, layouts: tuple[Layout, Layout], arrays: tuple[list[Array], Array],
    dtype: np.dtype[Any], limit: int | None,
) -> None:  # fmt: skip
    """Convert once and compare."""
    (source, target), (parts, whole) = layouts, arrays
    own = np.random.default_rng(comm.rank)
    mine = placed(numbers(dtype, parts[comm.rank]), dtype, own)
    out = out_of(target.local_shape(comm.rank), dtype, own)
    made = redistribute(comm, mine, source, target, out=out, limit_bytes=limit)
    assert out is None or made is out
    assert made.dtype == dtype
    if kept(source, target):
        real = np.clip(made.real.astype("f8"), -1e9, 1e9)
        found = [one.astype(np.int64) for one in comm.allgather(real)]
        assert (value_of(target, found) == whole).all()
        return
    wanted = expected(target, whole)[comm.rank]
    assert made.tobytes() == placed(numbers(dtype, wanted), dtype, own).tobytes()


@WAYS
def test_many_mebibytes(world: World, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = ranks_of(way, world, monkeypatch)
    mesh = Mesh({"x": comm.size})
    shape = (1031, 517, 3)
    whole = np.arange(prod(shape), dtype=np.int64).reshape(shape)
    layouts = [Layout(shape, [how], mesh=mesh) for how in (Split(0), Split(1), Broadcast())]
    for source in layouts:
        for target in layouts:
            for limit in (None, 1 << 18):
                part = whole[source.box(comm.rank)].copy()
                made = redistribute(comm, part, source, target, limit_bytes=limit)
                assert made.flags.c_contiguous
                assert (made == whole[target.box(comm.rank)]).all()


@WAYS
def test_terms_are_added_in_the_order_of_the_coordinates(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = ranks_of(way, world, monkeypatch)
    rng = seeded(comm)
    order = rng.permutation(comm.size)
    mesh = Mesh({"x": comm.size}, order=order)
    terms = [rng.normal(size=(53, 11)) * 10.0 ** rng.integers(-9, 9) for _ in range(comm.size)]
    whole = terms[order[0]].copy()
    for rank in order[1:]:
        whole += terms[rank]
    source = Layout((53, 11), [Partial()], mesh=mesh)
    for how in (Split(1), Broadcast()):
        target = Layout((53, 11), [how], mesh=mesh)
        for limit in (None, 16, 240):
            made = redistribute(comm, terms[comm.rank], source, target, limit_bytes=limit)
            assert (made == whole[target.box(comm.rank)]).all()


@pytest.mark.parametrize("nodes", [[0, 1, 2, 3], [1, 0, 1, 2], [0, 0, 1, 1]])
def test_nodes_that_take_turns(
    comm: MPI.Intracomm, nodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_rounds, "_LEAST_FAR", 1)
    groups = [(nodes * comm.size)[: comm.size], list(range(comm.size))]
    mesh = Mesh({"x": comm.size}, Topology.from_groups(("node", "rank"), groups))
    whole = np.arange(41.0 * 29).reshape(41, 29)
    layouts = [Layout((41, 29), [how], mesh=mesh) for how in (Split(0), Split(1), Broadcast())]
    for source in layouts:
        for target in layouts:
            for limit in (None, 500):
                part = whole[source.box(comm.rank)].copy()
                made = redistribute(comm, part, source, target, limit_bytes=limit)
                assert (made == whole[target.box(comm.rank)]).all()


def test_terms_of_a_node_are_added_first(comm: MPI.Intracomm) -> None:
    rng = seeded(comm)
    order = rng.permutation(comm.size)
    node = rng.integers(0, max(2, comm.size - 1), comm.size)
    machine = Topology.from_groups(("node", "rank"), [node.tolist(), list(range(comm.size))])
    mesh = Mesh({"x": comm.size}, machine, order)
    for dtype in (np.dtype("f4"), np.dtype(ml_dtypes.bfloat16), np.dtype("c16")):
        sizes = 10.0 ** rng.integers(-3, 3, comm.size)
        terms = [(rng.normal(size=(53, 11)) * size).astype(dtype) for size in sizes]
        inside: dict[int, Array] = {}
        for rank in order:
            before = inside.get(int(node[rank]))
            inside[int(node[rank])] = terms[rank] if before is None else before + terms[rank]
        whole = sum(inside.values(), next(iter(inside.values())) * dtype.type(0))
        source = Layout((53, 11), [Partial()], mesh=mesh)
        for how in (Split(0), Broadcast()):
            target = Layout((53, 11), [how], mesh=mesh)
            for limit in (None, 100 * dtype.itemsize):
                made = redistribute(comm, terms[comm.rank], source, target, limit_bytes=limit)
                assert (made == whole[target.box(comm.rank)]).all()


class Counting:
    """A communicator that counts what Alltoallv sends and holds."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.sent, self.most = comm, 0, 0
        self.arrays: list[Arrays] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def Alltoallv(self, send: Any, receive: Any) -> None:
        """Count, and do it."""
        self.sent += sum(send[1][0])
        sums = sum(kept.nbytes for kept in self.arrays[-1]._sums.values())
        self.most = max(self.most, sum(send[1][0]) + sum(receive[1][0]) + sums)
        self.comm.Alltoallv(send, receive)


def test_no_more_is_sent_and_held_than_planned(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = seeded(comm)
    counting = Counting(comm)
    real = MessageExchange
    monkeypatch.setattr(
        exchange,
        "MessageExchange",
        lambda comm, *rest: real(counting, *rest),  # noqa: ARG005
    )
    arrays = Arrays

    def noted(*rest: Any) -> Arrays:
        counting.arrays.append(arrays(*rest))
        return counting.arrays[-1]

    monkeypatch.setattr(exchange, "Arrays", noted)
    for limit in [None, 16, 64, 1000] * 10:
        source, target = (layout((19, 23), comm.size, "sum", rng) for _ in range(2))
        counting.sent = counting.most = 0
        part = np.ones(source.local_shape(comm.rank))
        redistribute(comm, part, source, target, limit_bytes=limit)
        machine = exchange._topology(comm, source, target)
        made = Conversion(source, target, 8, machine)
        direct = Conversion(source, target, 8, machine, is_direct=True)
        planned = {made.sent(comm.rank)} | ({direct.sent(comm.rank)} if limit else set())
        assert counting.sent in planned
        assert counting.most <= (made.peak_bytes(comm.rank) if limit is None else limit)


def wrong_calls(comm: Any) -> list[tuple[str, Any]]:
    """List calls that the last rank gets wrong, with what is said."""
    mesh = Mesh({"x": comm.size})
    rows, columns = (Layout((6, 4), [Split(axis)], mesh=mesh) for axis in (0, 1))
    mean = Layout((6, 4), [Partial("min")], mesh=mesh)
    last = comm.rank == comm.size - 1
    part = np.zeros(rows.local_shape(comm.rank))
    fits = columns.local_shape(comm.rank)

    def call(array: Any = part, source: Any = rows, target: Any = columns, **more: Any) -> Any:
        return lambda: redistribute(comm, array, source, target, **more)

    read_only = np.zeros(fits)
    read_only.setflags(write=not last)
    return [
        ("has shape", call(np.zeros((9, 9)) if last else part)),
        ("give a NumPy array", call(None if last else part)),
        ("is masked", call(np.ma.masked_array(part) if last else part)),
        ("dtype object", call(part.astype(object) if last else part)),
        ("out has shape", call(out=np.zeros((9, 9) if last else fits))),
        ("the same dtype", call(out=np.zeros(fits, "f4" if last else "f8"))),
        ("read-only", call(out=read_only)),
        ("least|<= limit_bytes", call(limit_bytes=0 if last else 100)),
        ("<= limit_bytes", call(limit_bytes=9 if last else 100)),
        ("give a Layout", call(target=None if last else columns)),
        ("complex", call(part.astype("c8"), target=mean)),
        ("of elements of", call(np.zeros(part.shape, PAIR), target=mean)),
        ("global shapes", call(target=Layout((6, 5), [Split(0)], mesh=mesh))),
        ("ranks", call(target=Layout((6, 4), [Split(0)], mesh=Mesh({"x": comm.size + 1})))),
        ("mixed", call(np.zeros((6, 4)), Layout((6, 4), [Partial()], mesh=mesh), mean)),
    ]


@WAYS
def test_bad_input_of_one_rank_is_told_by_all(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = ranks_of(way, world, monkeypatch)
    for said, call in wrong_calls(comm):
        with pytest.raises(cr.UsageError, match=said) as told:
            call()
        assert len(set(comm.allgather(str(told.value)))) == 1, said
    if comm.size == 1:
        return
    mesh = Mesh({"x": comm.size})
    rows, columns = (Layout((6, 4), [Split(axis)], mesh=mesh) for axis in (0, 1))
    part = np.zeros(rows.local_shape(comm.rank), "f8" if comm.rank else "i8")
    with pytest.raises(cr.UsageError, match="dtypes differ"):
        redistribute(comm, part, rows, columns)
    with pytest.raises(Disagreement, match="ranks disagree"):
        redistribute(comm, part.astype("f8"), rows, columns if comm.rank else rows)
    with pytest.raises(Disagreement, match="limit_bytes=64"):
        redistribute(comm, part.astype("f8"), rows, columns, limit_bytes=64 + comm.rank)
    assert redistribute(comm, part.astype("f8"), rows, columns).shape[0] == 6


FIELDS: dict[str, Any] = {"names": ["a", "b"], "formats": ["<i4", "<i4"]}


@pytest.mark.parametrize("offsets", [[4, 0], [0, 2]])
def test_fields_in_any_order(comm: MPI.Intracomm, offsets: list[int]) -> None:
    mesh = Mesh({"x": comm.size})
    rows, columns = (Layout((6, 4), [Split(axis)], mesh=mesh) for axis in (0, 1))
    said: list[Any] = [{**FIELDS, "offsets": at, "itemsize": 8} for at in (offsets, [4, 2])]
    kind: Any = np.dtype(said[0])
    whole = np.arange(24).reshape(6, 4).view(kind)
    made = redistribute(comm, whole[rows.box(comm.rank)], rows, columns)
    for name in FIELDS["names"]:
        assert (made[name] == whole[columns.box(comm.rank)][name]).all()
    other = kind if comm.rank else np.dtype(said[1])
    if comm.size > 1:
        with pytest.raises(cr.UsageError, match="dtypes differ"):
            redistribute(comm, whole[rows.box(comm.rank)].view(other), rows, columns)


@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize("dtype", [">f8", ">i2", ">u8"])
def test_terms_of_the_other_byte_order(comm: MPI.Intracomm, dtype: str, op: str) -> None:
    mesh = Mesh({"x": comm.size})
    terms, rows = Layout((6,), [Partial(op)], mesh=mesh), Layout((6,), [Split(0)], mesh=mesh)
    whole = (np.arange(6) + comm.rank).astype(dtype)
    made = redistribute(comm, whole, terms, rows)
    each = np.arange(6) + np.arange(comm.size)[:, None]
    assert made.dtype == np.dtype(dtype)
    assert made.tolist() == getattr(each, op)(axis=0)[rows.box(comm.rank)].tolist()


def test_arrays_that_share_memory_are_refused(comm: MPI.Intracomm) -> None:
    same = Layout((8,), [Broadcast()], mesh=Mesh({"x": comm.size}))
    room = np.arange(16.0)
    with pytest.raises(cr.UsageError, match="share memory"):
        redistribute(comm, room[:8], same, same, out=room[4:12])
    redistribute(comm, room[::2], same, same, out=room[1::2])
    assert (room[1::2] == room[::2]).all()


@WAYS
def test_a_rank_that_has_forgotten_a_conversion_makes_it_again_with_all(
    world: World, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = ranks_of(way, world, monkeypatch)
    whole = np.arange(63.0).reshape(7, 9)
    for turn in range(4):
        if turn < 2 or comm.rank == 0:
            exchange._READY._ready.clear()
        mesh = Mesh({"x": comm.size})  # equal layouts, of other objects
        rows, columns = (Layout((7, 9), [Split(axis)], mesh=mesh) for axis in (0, 1))
        made = redistribute(comm, whole[rows.box(comm.rank)], rows, columns)
        assert (made == whole[columns.box(comm.rank)]).all()


def test_layouts_of_children_and_duplicates(world: World) -> None:
    with world.Split(0, -world.rank) as turned:
        mesh = Mesh({"x": turned.size})
        rows, columns = (Layout((7, 9), [Split(axis)], mesh=mesh) for axis in (0, 1))
        whole = np.arange(63.0).reshape(7, 9)
        for _ in range(3):
            made = redistribute(turned, whole[rows.box(turned.rank)], rows, columns)
            assert (made == whole[columns.box(turned.rank)]).all()
    made = redistribute(world, whole[rows.box(world.rank)], rows, columns)
    assert (made == whole[columns.box(world.rank)]).all()


def test_a_closed_communicator_keeps_no_window(comm: MPI.Intracomm) -> None:
    with cr.init(comm) as world:
        mesh = Mesh({"x": world.size})
        rows, all_of = (Layout((7, 9), [how], mesh=mesh) for how in (Split(0), Broadcast()))
        redistribute(world, np.zeros(rows.local_shape(world.rank)), rows, all_of)
        window = window_exchange._WINDOWS.get(world.membership.world)
        assert window is None or window.halves
    assert window is None or not window.halves


def test_a_forked_child_is_no_rank(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    same = Layout((8,), [Broadcast()], mesh=Mesh({"x": comm.size}))
    monkeypatch.setattr(forked_child.Process, "is_child", True)
    with pytest.raises(cr.UsageError, match="forked"):
        redistribute(comm, np.zeros(8), same, same)


def test_what_is_no_communicator_is_named(comm: MPI.Intracomm) -> None:
    same = Layout((8,), [Broadcast()], mesh=Mesh({"x": comm.size}))
    wrong: list[Any] = [None, MPI.COMM_NULL, MPI.Intracomm(MPI.COMM_NULL)]
    for one, said in zip(wrong, ("None", "COMM_NULL", "COMM_NULL"), strict=True):
        with pytest.raises(cr.UsageError, match=said):
            redistribute(one, np.zeros(8), same, same)


def test_checking_mode(comm: MPI.Intracomm) -> None:
    with cr.init(comm, check=True) as world:
        mesh = Mesh({"x": world.size})
        rows, all_of = (Layout((7, 9), [how], mesh=mesh) for how in (Split(0), Broadcast()))
        whole = np.arange(63.0).reshape(7, 9)
        assert (redistribute(world, whole[rows.box(world.rank)], rows, all_of) == whole).all()


def test_a_node_without_memory_exchanges_by_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: Any) -> Any:
        raise Unavailable("no memory", "free some")

    monkeypatch.setattr(shared_arrays, "make_window", none_left)
    mesh = Mesh({"x": world.size})
    rows, all_of = (Layout((7, 9), [how], mesh=mesh) for how in (Split(0), Broadcast()))
    whole = np.arange(63.0).reshape(7, 9)
    for _ in range(2):
        assert (redistribute(world, whole[rows.box(world.rank)], rows, all_of) == whole).all()
    assert conversion(rows, all_of).received(0) == 8 * (63 - whole[rows.box(0)].size)
