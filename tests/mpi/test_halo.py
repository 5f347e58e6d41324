"""Halos on real ranks: every exchange equals padding, and every reduction its adjoint."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.errors import Disagreement, Revoked, UsageError
from closeranks.partitioning import Broadcast, Halo, Layout, Mesh, Partial, Split
from closeranks.partitioning.halo import near_messages
from closeranks.partitioning.halo.halo import MOST
from closeranks.partitioning.halo.halo_traffic import HaloTraffic
from closeranks.partitioning.halo.near_messages import NearMessages

World = cr.Communicator
STRUCT = np.dtype([("a", "i1"), ("b", "f4"), ("c", "u2")])
DTYPES = (
    np.dtype("f8"), np.dtype("i1"), np.dtype(">i2"), np.dtype("f4"), np.dtype("c16"),
    np.dtype(ml_dtypes.bfloat16), np.dtype("f2"), np.dtype("?"), np.dtype("S3"), STRUCT,
)  # fmt: skip
NUMBERS = ("f8", "f4", "i8", "c16", "f2", ml_dtypes.bfloat16)


def layouts(size: int) -> Iterator[tuple[Layout, Any, Any]]:
    """Layouts for a number of ranks, with widths and rings that fit them."""
    line = Mesh({"a": size})
    back = Mesh({"a": size}, order=np.arange(size)[::-1])
    yield Layout((9, 5), [Split(0)], mesh=line), 1, False
    yield Layout((9, 5), [Split(0)], mesh=back), [(2, 1), (1, 3)], True
    yield Layout((2, 3), [Split(0)], mesh=line), [2, (0, 1)], (True, False)  # empty parts
    yield Layout((4, 4, 7), [Split(2)], mesh=back), [1, 0, (3, 2)], (True, False, True)
    yield Layout((6,), [Broadcast()], mesh=line), (2,), True
    cuts = {0: [0, *[1] * (size - 1), 7]} if size > 1 else None
    yield Layout((7, 3), [Split(0)], mesh=line, cuts=cuts), [3, 1], (True, True)
    if size == 4:
        grid = Mesh({"a": 2, "b": 2}, order=[[2, 0], [3, 1]])
        yield Layout((5, 4, 3), [Split(0), Split(1)], mesh=grid), 1, (True, False, True)
        yield Layout((8, 3), [Split(0), Broadcast()], mesh=grid), [(1, 2), 1], True
        yield Layout((11, 2), [Split(0), Split(0)], mesh=grid), [4, 0], False


def filled(dtype: np.dtype[Any], shape: Sequence[int], seed: int) -> np.ndarray:
    """Draw elements of a type."""
    draw = np.random.default_rng(seed)
    drawn = draw.integers(0, 100, (*shape, dtype.itemsize), np.uint8)
    if dtype == STRUCT or dtype.kind == "S":
        return np.ascontiguousarray(drawn).view(dtype).reshape(shape)
    return draw.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def padded(halo: Halo, whole: np.ndarray, rank: int, before: np.ndarray) -> np.ndarray:
    """Give what `exchange` makes of an array that held ``before``."""
    index, owned, outside = [], [], []
    bounds = halo.layout.bounds_of(rank)
    for (start, stop), (low, high), ring, length in zip(
        bounds, halo.widths, halo.periodic, whole.shape, strict=True
    ):
        at = np.arange(start - low, stop + high)
        owned.append((at >= 0) & (at < length) | bool(ring and length))
        outside.append((at < start) | (at >= stop))
        index.append(at % max(length, 1))
    given = before.copy()
    ghosts = sum(np.ix_(*[one.astype(int) for one in outside])) if whole.ndim else np.array(0)
    fills = np.ones(halo.shape, bool)
    for axis, one in enumerate(owned):
        fills &= one.reshape([-1 if at == axis else 1 for at in range(whole.ndim)])
    if not halo.corners:
        fills &= np.broadcast_to(ghosts, halo.shape) < 2
    if whole.size:
        given[fills] = whole[np.ix_(*index)][fills]
    return given


def shaped(shape: tuple[int, ...], dtype: np.dtype[Any], order: str) -> np.ndarray:
    """Make an array with zeros whose memory is laid out in some way."""
    if order in "CF":
        made: np.ndarray = np.zeros(shape, dtype, "C" if order == "C" else "F")
        return made
    if order == "gaps":
        return np.zeros([2 * n for n in shape], dtype)[tuple([slice(None, None, 2)] * len(shape))]
    return np.zeros(shape, dtype)[tuple([slice(None, None, -1)] * len(shape))]


def two_nodes(traffic: HaloTraffic, received: Any, sent: Any) -> NearMessages:
    """Let ranks of one parity share memory, as if they were those of a node."""
    node: Any = traffic.comm.Split(traffic.comm.rank % 2)
    try:
        ranks = range(traffic.comm.rank % 2, traffic.comm.size, 2)
        return NearMessages(node, ranks, received, sent)
    finally:
        node.Free()


@pytest.mark.parametrize("kind", ["plain", "node memory", "messages", "both"])
def test_exchanges_equal_padding(
    comm: MPI.Intracomm, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "messages":
        monkeypatch.setattr(HaloTraffic, "near", lambda *_: None)
    elif kind == "both":
        monkeypatch.setattr(HaloTraffic, "near", two_nodes)
    opened = None if kind == "plain" else cr.init(comm)
    try:
        for corners in (True, False):
            for number, (layout, width, periodic) in enumerate(layouts(comm.size)):
                options = {"periodic": periodic, "corners": corners}
                with Halo(opened or comm, layout, width, **options) as halo:
                    exchanges(halo, comm, number)
    finally:
        if opened is not None:
            opened.close()


def exchanges(halo: Halo, comm: MPI.Intracomm, number: int) -> None:
    """Exchange arrays of all kinds; each twice, with other content."""
    kept = []
    for seed, order in enumerate(("C", "F", "gaps", "back")):
        dtype = DTYPES[(seed + 3 * number) % len(DTYPES)]
        array = shaped(halo.shape, dtype, order)
        for turn in range(2):
            whole = filled(dtype, halo.layout.global_shape, 10 * number + seed + 100 * turn)
            array[...] = filled(dtype, halo.shape, comm.rank + 50)
            halo.interior(array)[...] = whole[halo.layout.box(comm.rank)]
            wanted = padded(halo, whole, comm.rank, array)
            if turn:
                halo.start(array)
                halo.finish()
            else:
                halo.exchange(array)
            assert array.tobytes() == wanted.tobytes(), (halo, dtype, order)
            kept.append((array, wanted))
        kept = kept[:2]


def test_reduce_is_the_adjoint(world: World) -> None:
    for number, (layout, width, periodic) in enumerate(layouts(world.size)):
        for corners in (True, False):
            with Halo(world, layout, width, periodic=periodic, corners=corners) as halo:
                draw = np.random.default_rng([number, world.rank])
                x, y = draw.normal(size=(2, *halo.shape))
                reduced, exchanged = x.copy(), y.copy()
                halo.exchange(exchanged)
                halo.reduce(reduced)
                mine = np.array([np.vdot(x, exchanged), np.vdot(reduced, y), np.vdot(x, x)])
                left, right, scale = world.allreduce(mine)
                assert abs(left - right) <= 1e-12 * max(1.0, scale)


def test_reduce_adds_and_clears(world: World) -> None:
    size = world.size
    layout = Layout((3 * size,), [Split(0)], mesh=Mesh({"a": size}))
    with Halo(world, layout, (1, 2)[:1], periodic=True) as halo:
        for dtype in NUMBERS:
            array = np.ones(halo.shape, dtype)[::-1]
            for _ in range(2):
                array[0], array[-1] = 2, 4
                halo.reduce(array)
            assert array.astype(complex).tolist() == [0, 9, 1, 5, 0]
        for dtype in (STRUCT, np.dtype("?"), np.dtype("S3"), np.dtype("M8[s]")):
            with pytest.raises(UsageError, match="no sum"):
                halo.reduce(np.zeros(halo.shape, dtype))
        halo.exchange(halo.empty("f4"))


def test_the_interior_of_an_array_without_axes_is_a_view(comm: MPI.Intracomm) -> None:
    with Halo(comm, Layout((), [Broadcast()], mesh=Mesh({"a": comm.size})), 1) as halo:
        array = halo.empty("i4")
        halo.interior(array)[...] = 7
        halo.exchange(array)
        assert array == 7
        with pytest.raises(UsageError, match="array is \\[7\\]"):
            halo.interior([7])  # type: ignore[arg-type]


def interrupted(patch: pytest.MonkeyPatch, halo: Halo) -> None:
    """Let the next wait for messages end with them, but not the call."""

    def complete(*args: Any) -> None:
        patch.undo()
        halo._traffic.complete(*args)
        raise KeyboardInterrupt

    patch.setattr(halo._traffic, "complete", complete)


def test_a_reduce_that_was_left_is_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    size = world.size
    layout = Layout((3 * size,), [Split(0)], mesh=Mesh({"a": size}))
    with Halo(world, layout, 1, periodic=True) as halo:
        array = np.array([2.0, 1, 1, 1, 4])
        if world.rank == 0 and size > 1:
            interrupted(monkeypatch, halo)
            with pytest.raises(KeyboardInterrupt):
                halo.reduce(array)
            halo.finish()
        else:
            halo.reduce(array)
        assert array.tolist() == [0, 5, 1, 3, 0]


def test_a_wait_that_was_left_reads_no_slot_again(world: World) -> None:
    size, rank = world.size, world.rank
    layout = Layout((8 * size,), [Split(0)], mesh=Mesh({"a": size}))
    with Halo(world, layout, [(1, 0)]) as halo:  # nothing comes back to who sends
        array, wrong = halo.empty(), []
        for step in range(40):
            array[:] = 100 * step + rank
            halo.start(array)
            if rank == size - 1 and rank and step == 0:
                near, cells = halo._near, halo._under_way[1].near  # type: ignore[index]
                near.take(cells, halo._traffic.wait, "test")
                time.sleep(0.05)  # others write to all slots of the ring
            halo.finish()
            wrong += [step] * bool(rank and array[0] != 100 * step + rank - 1)
    assert wrong == []


def test_a_halo_of_a_derived_communicator(world: World) -> None:
    child = world.Split(world.rank % 2, -world.rank)
    size, rank = child.size, child.rank
    layout = Layout((300 * size, 2), [Split(0)], mesh=Mesh({"a": size}))
    with Halo(child, layout, [(280, 290), 0], periodic=True) as halo:  # long runs
        array = halo.empty("i4")
        halo.interior(array)[...] = np.arange(300 * rank, 300 * rank + 300)[:, None]
        halo.exchange(array)
        wanted = np.arange(300 * rank - 280, 300 * rank + 590) % (300 * size)
        assert (array == wanted[:, None]).all()
    open_one = Halo(child, layout, 1)
    child.Free()
    with pytest.raises(Revoked):
        open_one.exchange(open_one.empty())
    open_one.close()


@pytest.mark.parametrize("dtypes", [("f8",), ("f8", "f4", "c16", "V24")])
def test_no_slot_is_written_before_it_was_read(
    world: World, dtypes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_messages, "MOST_SLOTS", 3)
    size, rank = world.size, world.rank
    layout = Layout((200 * size,), [Split(0)], mesh=Mesh({"a": size}))
    with Halo(world, layout, [(100, 0)]) as halo:  # nothing comes back to who sends
        arrays, wrong = [halo.empty(dtype) for dtype in dtypes], []
        for step in range(60):
            array = arrays[step % 13 % len(arrays)]
            numbers = array.view("u1")
            numbers[...] = (7 * step + rank) % 256
            if rank == size - 1 and step % 9 == 0:
                time.sleep(2e-3)
            halo.exchange(array)
            ghosts = numbers[: 100 * array.itemsize]
            owner = rank - 1 if rank else rank
            wrong += [step] * bool((ghosts != (7 * step + owner) % 256).any())
    assert wrong == []


def test_ghosts_of_two_halos_and_messages_of_the_program(comm: MPI.Intracomm) -> None:
    size, rank = comm.size, comm.rank
    layout = Layout((4 * size,), [Split(0)], mesh=Mesh({"a": size}))
    whole = np.arange(4.0 * size)
    with Halo(comm, layout, 1, periodic=True) as one, Halo(comm, layout, 3, periodic=True) as two:
        a, b = one.empty(), two.empty()
        one.interior(a)[...] = whole[layout.box(rank)]
        two.interior(b)[...] = -whole[layout.box(rank)]
        got = np.zeros(1)
        request = comm.Irecv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
        one.start(a)
        two.start(b)
        comm.Send(np.full(1, 7.0 + rank), (rank + 1) % size, 0)
        two.finish()
        one.finish()
        request.Wait()
        assert got[0] == 7 + (rank - 1) % size
        assert a.tolist() == [whole[i % whole.size] for i in range(4 * rank - 1, 4 * rank + 5)]
        assert b.tolist() == [-whole[i % whole.size] for i in range(4 * rank - 3, 4 * rank + 7)]


def test_a_step_allocates_nothing(world: World) -> None:
    for axis in range(3):
        layout = Layout((40, 40, 40), [Split(axis)], mesh=Mesh({"a": world.size}))
        with Halo(world, layout, 1, periodic=True) as halo:
            arrays = [halo.empty() for _ in range(2)]
            steps = (halo.exchange, halo.reduce)
            for _ in range(3):
                for array in arrays:
                    for step in steps:
                        step(array)
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                for array in arrays:
                    for step in steps:
                        step(array)
                most = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert most - before < 4096  # a face has at least 10 000 bytes


def test_many_arrays_are_not_kept(world: World) -> None:
    size, rank = world.size, world.rank
    layout = Layout((2 * size, 3), [Split(0)], mesh=Mesh({"a": size}))
    with Halo(world, layout, [1, 0], periodic=True) as halo:
        arrays = [halo.empty("i8") for _ in range(2 * MOST + 1)]
        for turn in range(2):
            for number, array in enumerate(arrays):
                halo.interior(array)[...] = 100 * number + rank + turn
                halo.exchange(array)
                assert array[0, 0] == 100 * number + (rank - 1) % size + turn
                assert array[-1, 0] == 100 * number + (rank + 1) % size + turn
        assert len(halo._bound) <= MOST


BAD: dict[str, Any] = {
    "width < 0": lambda layout: (layout, -1, {}),
    "width of no number": lambda layout: (layout, 1.5, {}),
    "beyond a ring": lambda layout: (layout, [100, 0], {"periodic": (True, False)}),
    "too many widths": lambda layout: (layout, [1, 1, 1], {}),
    "three sides": lambda layout: (layout, [(1, 1, 1), 0], {}),
    "too few rings": lambda layout: (layout, 1, {"periodic": [True]}),
    "no layout": lambda layout: (layout.mesh, 1, {}),
    "another size": lambda layout: (
        Layout((4,), [Split(0)], mesh=Mesh({"a": layout.mesh.size + 1})), 1, {}
    ),
    "partial": lambda layout: (
        Layout((4, 4), [Partial()], mesh=layout.mesh), 1, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("who", ["all", "one"])
def test_bad_arguments_are_refused_on_all_ranks(world: World, who: str) -> None:
    layout = Layout((8, 4), [Split(0)], mesh=Mesh({"a": world.size}))
    for make in BAD.values():
        bad = who == "all" or world.rank == world.size - 1
        given, width, options = make(layout) if bad else (layout, 1, {})
        with pytest.raises(UsageError):
            Halo(world, given, width, **options)
    with Halo(world, layout, 1) as halo:
        halo.exchange(halo.empty())


def test_ranks_that_pass_different_arguments(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("nobody differs")
    meshes = [Mesh({"a": comm.size}, order=np.roll(np.arange(comm.size), n)) for n in (0, 1)]
    layouts = [Layout((8, 4), [Split(0)], mesh=mesh) for mesh in meshes]
    first = comm.rank == 0
    for check, error in ((False, UsageError), (True, Disagreement)):
        with cr.init(comm, check=check) as world:
            for layout, width, corners in (
                (layouts[first], 1, True),
                (layouts[0], 1 + first, True),
                (layouts[0], 1, first),
            ):
                with pytest.raises(error):
                    Halo(world, layout, width, corners=corners)


def test_halos_that_look_alike_are_told_apart(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("nobody differs")
    with cr.init(comm, check=True) as world:
        layout = Layout((8, 4), [Split(0)], mesh=Mesh({"a": world.size}))
        pair = world.Split(world.rank // 2, world.rank)  # numbers of ranks run apart
        Halo(pair, Layout((4,), [Split(0)], mesh=Mesh({"a": pair.size})), 1).close()
        halos = [Halo(world, layout, 1) for _ in range(2)]
        arrays = [halo.empty() for halo in halos]
        for turn in (0, 1):
            halos[turn].exchange(arrays[turn])
        order = (0, 1) if world.rank == 0 else (1, 0)
        for turn in order:
            with pytest.raises(Disagreement, match="halo"):
                halos[turn].exchange(arrays[turn])
        for halo in halos:
            halo.close()
        pair.Free()


def test_arrays_that_do_not_fit(world: World) -> None:
    layout = Layout((8, 4), [Split(0)], mesh=Mesh({"a": world.size}))
    halo = Halo(world, layout, 1)
    fixed = halo.empty()
    fixed.setflags(write=False)
    wrongs: list[Any] = [np.zeros((2, 2)), fixed, np.zeros(halo.shape, object), [1.0], None]
    for wrong in wrongs:
        for call in (halo.exchange, halo.start, halo.reduce):
            with pytest.raises(UsageError):
                call(wrong)
    with pytest.raises(UsageError, match="under way"):
        halo.finish()
    with pytest.raises(UsageError, match="shape"):
        halo.interior(np.zeros(3))
    with pytest.raises(UsageError, match="dtype"):
        halo.empty("no type")
    array = halo.empty()
    halo.start(array)
    for call in (halo.exchange, halo.start, halo.reduce):
        with pytest.raises(UsageError, match="finish"):
            call(array)
    with pytest.raises(UsageError, match="finish"):
        halo.close()
    halo.finish()
    halo.close()
    halo.close()
    with pytest.raises(UsageError, match="closed"):
        halo.exchange(array)


def test_a_wrong_array_on_one_rank_is_refused_on_all_that_check(comm: MPI.Intracomm) -> None:
    with cr.init(comm, check=True) as world:
        layout = Layout((8, 4), [Split(0)], mesh=Mesh({"a": world.size}))
        with Halo(world, layout, 1) as halo:
            array = halo.empty()
            with pytest.raises(UsageError):
                halo.exchange(array[1:] if world.rank == 0 else array)
            if world.size > 1:
                with pytest.raises(Disagreement):
                    halo.exchange(halo.empty("f4") if world.rank == 0 else array)
                with Halo(world, layout, 2) as wider:
                    used = wider if world.rank == 0 else halo
                    with pytest.raises(Disagreement):
                        used.exchange(used.empty())
                with pytest.raises(Disagreement, match="reduce of"):
                    (halo.reduce if world.rank == 0 else halo.exchange)(array)
            halo.exchange(array)


@pytest.mark.parametrize("axis", [0, 2])
@pytest.mark.parametrize("dtypes", ["f4 f8", "f8 i8", "f8 >f8"])
def test_another_type_on_one_rank_is_noticed(comm: MPI.Intracomm, axis: int, dtypes: str) -> None:
    """Long runs go by messages, short ones through node memory; both name the type."""
    layout = Layout((32, 32, 32), [Split(axis)], mesh=Mesh({"a": comm.size}))
    first, others = dtypes.split()
    halo = Halo(comm, layout, 1)
    array = halo.empty(first if comm.rank == 0 else others)
    halo.exchange(halo.empty("f8"))  # types may change, on all ranks together
    if comm.size == 1:
        halo.exchange(array)
        halo.close()
        return
    near_it = comm.rank < 2
    if near_it:
        with pytest.raises(UsageError, match="of another type on rank"):
            halo.exchange(array)
        with pytest.raises(Revoked, match="has failed before"):
            halo.exchange(array)
    else:
        halo.exchange(array)
    comm.Barrier()
    halo.close()


def test_a_rank_that_leaves_ends_the_wait_of_the_others(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("nobody waits")
    layout = Layout((2 * comm.size,), [Split(0)], mesh=Mesh({"a": comm.size}))
    expected = ZeroDivisionError if comm.rank == 0 else Revoked
    with pytest.raises(expected):
        leave_or_wait(comm, layout)


def leave_or_wait(comm: MPI.Intracomm, layout: Layout) -> None:
    """Leave by an exception on one rank; the others go on exchanging."""
    with cr.init(comm) as world, Halo(world, layout, 1, periodic=True) as halo:
        array = halo.empty()
        halo.exchange(array)
        if world.rank == 0:
            raise ZeroDivisionError
        while True:
            halo.exchange(array)
