"""The communicator on real ranks: every operation, by the library and by every plan."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.builders.catalogue import algorithms
from closeranks.collectives.shm.segment import LEAST_BYTES, SPACIOUS
from tests.mpi.expected import COUNT, cases, given, summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

World = cr.Communicator


def _names(operation: str) -> list[str]:
    return ["auto", "native", *algorithms(operation)]


def _each(comm: World) -> Iterator[tuple[Any, str]]:
    """Every case with every algorithm that can serve it."""
    for root in range(comm.size):
        for number, case in enumerate(cases(comm.rank, comm.size, root)):
            for name in _names(case.method.lower()):
                yield cases(comm.rank, comm.size, root)[number], name


def _served(call: Callable[[], object]) -> bool:
    """Make a call; False where the algorithm says that it cannot."""
    try:
        call()
    except cr.UsageError as error:
        if "cannot:" not in str(error):
            raise
        return False
    return True


def _call(comm: World, case: Any, name: str, form: str) -> None:
    """Make a call in one of three forms."""
    method = case.method
    if form == "blocking":
        getattr(comm, method)(*case.arguments, algorithm=name)
    elif form == "I":
        getattr(comm, f"I{method.lower()}")(*case.arguments, algorithm=name).wait(30)
    else:
        with getattr(comm, f"{method}_init")(*case.arguments, algorithm=name) as operation:
            for _ in range(2):
                operation.start()
                operation.wait(30)


@pytest.fixture
def parted(comm: MPI.Intracomm | None) -> Iterator[World | None]:
    """A communicator that takes pairs of ranks for nodes, two nodes for a site."""
    if comm is None:
        yield None
        return
    ranks = np.arange(comm.size)
    groups = np.stack([ranks // 4, ranks // 2, ranks]).astype(np.int32)
    topology = cr.Topology.from_groups(("site", "node", "rank"), groups)
    with cr.init(comm, topology=topology) as opened:
        yield opened


@pytest.mark.timeout(120)
def test_every_operation_over_several_levels(parted: World | None) -> None:
    if parted is None:
        pytest.skip("left out: a test on fewer ranks")
    used = set()
    for case, name in _each(parted):
        if _served(partial(_call, parted, case, name, "blocking")):
            used.add(name)
            assert case.result is None or case.out.tolist() == case.result.tolist(), (
                case.method,
                name,
            )
    assert parted.size < 3 or any("hierarchical" in name for name in used)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("form", ["blocking", "I", "init"])
def test_every_operation_with_every_algorithm(world: World, form: str) -> None:
    for case, name in _each(world):
        if form == "init" and case.method == "Bcast":
            case.result = given(case.arguments[1], COUNT)
        served = _served(partial(_call, world, case, name, form))
        assert served or name not in ("auto", "native")
        if served and case.result is not None:
            assert case.out.tolist() == case.result.tolist(), (case.method, name)


def test_barrier_waits_for_all(world: World) -> None:
    for name in _names("barrier"):
        if _served(partial(world.Barrier, algorithm=name)):
            world.Ibarrier(algorithm=name).wait(30)


@pytest.mark.parametrize("dtype", ["b", "?", "i4", "u8", "f2", "f4", "f8", "g", "F", "bfloat16"])
def test_reductions_of_every_type(world: World, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    op = MPI.LOR if dtype == "?" else MPI.SUM
    every = np.any([given(r, 9) != 0 for r in range(world.size)], axis=0)
    expected = every if dtype == "?" else summed(world.size, 9, kind)
    for name in _names("allreduce"):
        x, y = given(world.rank, 9, kind), np.zeros(9, kind)
        if _served(partial(world.Allreduce, x, y, op, algorithm=name)):
            assert (y == expected).all(), name
        else:
            assert dtype == "bfloat16" or name not in ("native", "auto")


def test_mean_divides_by_the_number_of_ranks(world: World) -> None:
    for name in _names("allreduce"):
        x, y = given(world.rank, 4, "f4"), np.empty(4, "f4")
        if _served(partial(world.Allreduce, x, y, cr.MEAN, algorithm=name)):
            np.testing.assert_allclose(y, summed(world.size, 4, "f4") / world.size, rtol=1e-6)
    with pytest.raises(cr.UsageError, match="MEAN: not defined on int64"):
        world.Allreduce(np.ones(2, int), np.ones(2, int), cr.MEAN)
    with pytest.raises(cr.UsageError, match="no partial results"):
        world.Scan(x, y, cr.MEAN)  # type: ignore[arg-type]


def test_in_place(world: World) -> None:
    rank, size = world.rank, world.size
    for name in _names("allreduce"):
        buf = given(rank, 6)
        if not _served(partial(world.Allreduce, MPI.IN_PLACE, buf, algorithm=name)):
            continue
        assert buf.tolist() == summed(size, 6).tolist(), name
    for name in _names("allgather"):
        wide = np.full(3 * size, -1)
        wide[3 * rank :][:3] = given(rank, 3)
        if not _served(partial(world.Allgather, MPI.IN_PLACE, wide, algorithm=name)):
            continue
        assert wide.tolist() == np.concatenate([given(r, 3) for r in range(size)]).tolist()
    for name in _names("alltoall"):
        both = given(rank, 2 * size)
        if not _served(partial(world.Alltoall, MPI.IN_PLACE, both, algorithm=name)):
            continue
        came = [given(r, 2 * size)[2 * rank :][:2] for r in range(size)]
        assert both.tolist() == np.concatenate(came).tolist(), name
    for name in _names("reduce_scatter_block"):
        wide = given(rank, 2 * size)
        if not _served(partial(world.Reduce_scatter_block, MPI.IN_PLACE, wide, algorithm=name)):
            continue
        assert wide[:2].tolist() == summed(size, 2 * size)[2 * rank :][:2].tolist(), name
        assert wide[2:].tolist() == given(rank, 2 * size)[2:].tolist(), name


@pytest.mark.parametrize("name", ["native", "auto", "ring"])
def test_arrays_with_gaps(world: World, name: str) -> None:
    table = np.zeros((5, 3))
    table[:, 1] = given(world.rank, 5)
    out = np.full((5, 2), -1.0)
    names = {op: name if name in _names(op) else "auto" for op in ("allreduce", "bcast")}
    world.Allreduce(table[:, 1], out[:, 0], algorithm=names["allreduce"])
    assert out[:, 0].tolist() == summed(world.size, 5).tolist()
    assert (out[:, 1] == -1).all()
    world.Iallreduce(table[:, 1], out[:, 1], algorithm=names["allreduce"]).wait(30)
    assert out[:, 1].tolist() == out[:, 0].tolist()
    if world.rank == 0:
        out[:, 0] = 7
    world.Bcast(out[:, 0], algorithm=names["bcast"])
    assert (out[:, 0] == 7).all()


def test_derived_datatypes(world: World) -> None:
    column = MPI.DOUBLE.Create_vector(4, 1, 3).Create_resized(0, 8).Commit()
    for name in _names("bcast"):
        table = np.zeros((4, 3))
        if world.rank == 0:
            table[:] = np.arange(12).reshape(4, 3)
        if not _served(partial(world.Bcast, [table, 2, column], algorithm=name)):
            continue
        assert table[:, 0].tolist() == [0, 3, 6, 9], name
        assert table[:, 1].tolist() == [1, 4, 7, 10], name
        assert table[:, 2].tolist() == ([2, 5, 8, 11] if world.rank == 0 else [0] * 4)
    column.Free()


def test_ops_of_the_user_keep_their_order(world: World) -> None:
    def right(left: Any, both: Any, datatype: MPI.Datatype) -> None:
        """Multiply 2x2 matrices: left times right."""
        del datatype
        a, b = np.frombuffer(left, "i8").reshape(2, 2), np.frombuffer(both, "i8").reshape(2, 2)
        b[:] = a @ b

    op = MPI.Op.Create(right, commute=False)
    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    mine = np.array([[1, world.rank + 1], [world.rank, 1]])
    expected = np.eye(2, dtype=int)
    for rank in range(world.size):
        expected = expected @ np.array([[1, rank + 1], [rank, 1]])
    out = np.zeros((2, 2), int)
    world.Allreduce([mine, 1, matrix], [out, 1, matrix], op)
    assert out.tolist() == expected.tolist()
    matrix.Free()
    op.Free()


def test_pairs_find_the_place_of_the_largest(world: World) -> None:
    for name in _names("allreduce"):
        x = np.array([((world.rank * 5) % 7, world.rank)], "f4,i4")
        y = np.zeros(1, "f4,i4")
        ours, best_of_all = [x, 1, MPI.FLOAT_INT], [y, 1, MPI.FLOAT_INT]
        if not _served(partial(world.Allreduce, ours, best_of_all, MPI.MAXLOC, algorithm=name)):
            continue
        best = max(range(world.size), key=lambda rank: (rank * 5) % 7)
        assert y.tolist() == [((best * 5) % 7, best)], name


def test_zero_counts(world: World) -> None:
    nothing = np.empty(0)
    for name in _names("allreduce"):
        _served(partial(world.Allreduce, nothing, nothing, algorithm=name))
    world.Allgatherv(nothing, [nothing, [0] * world.size])
    world.Alltoall(nothing, nothing)
    world.Bcast(nothing)


def test_all_ranks_get_the_same_bits(world: World) -> None:
    x = np.random.default_rng(world.rank).standard_normal(1001).astype("f4")
    for name in _names("allreduce"):
        y = np.empty_like(x)
        if not _served(partial(world.Allreduce, x, y, algorithm=name)):
            continue
        if name != "native":
            assert len(set(world.allgather(y.tobytes()))) == 1, name


def test_threads_that_have_a_communicator_each_do_not_wait_for_each_other(
    comm: MPI.Intracomm,
) -> None:
    """First calls open worlds, which waits for the others: in one order here, in another there."""

    def call(which: int) -> None:
        if (comm.rank + which) % 2:
            time.sleep(0.1)
        ours[which].Allreduce(np.ones(1000), totals[which], algorithm="ring")

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("one thread only")
    totals = np.zeros((2, 1000))
    with cr.init(comm) as world, world.Dup() as first, world.Dup() as second:
        ours = first, second
        threads = [threading.Thread(target=call, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (totals == comm.size).all()


def test_another_handle_is_the_same_communicator(world: cr.Communicator) -> None:
    """mpi4py's own code makes handles by ``type(comm)(comm)``."""
    child = world.Split(0)
    other, total = type(child)(child), np.zeros(3)
    for comm in (other, child, other):
        comm.Allreduce(np.ones(3), total)
        assert (total == world.size).all()
    assert other == child
    other.Free()
    for comm in (other, child):
        with pytest.raises((cr.Revoked, MPI.Exception)):
            comm.Allreduce(np.ones(3), total)
    with pytest.raises(cr.UsageError, match="handle of no communicator of ours"):
        cr.Communicator(MPI.COMM_WORLD).Allreduce(np.ones(3), total)
    none = world.Split(MPI.UNDEFINED)
    assert none == MPI.COMM_NULL
    assert isinstance(none, MPI.Intracomm)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda comm: comm.Barrier(), id="collective"),
        pytest.param(lambda comm: comm.Dup(), id="dup"),
        pytest.param(lambda comm: comm.close(), id="close"),
        pytest.param(lambda comm: comm.abandon(), id="abandon"),
        pytest.param(lambda comm: comm.empty(3), id="empty"),
        pytest.param(lambda comm: comm.bucketed({}), id="bucketed"),
        pytest.param(lambda comm: comm.using().__enter__(), id="using"),
        pytest.param(lambda comm: next(iter(comm.attempts())), id="attempts"),
        pytest.param(lambda comm: comm.digest({}), id="digest"),
        pytest.param(lambda comm: comm.__exit__(None, None, None), id="exit"),
    ],
)
def test_a_handle_of_no_communicator_of_ours_says_so(
    call: Callable[[cr.Communicator], object],
) -> None:
    with pytest.raises(cr.UsageError, match="handle of no communicator of ours"):
        call(cr.Communicator(MPI.COMM_WORLD))


def test_a_handle_of_no_communicator_of_ours_has_no_hierarchy() -> None:
    comm = cr.Communicator(MPI.COMM_WORLD)
    assert not hasattr(comm, "hierarchy")
    assert getattr(comm, "_followed", None) is None


def test_the_block_of_a_null_handle_ends_well() -> None:
    with cr.Communicator() as nobody:
        assert nobody == MPI.COMM_NULL
    with pytest.raises(KeyError), cr.Communicator():
        raise KeyError


@pytest.mark.parametrize("comm", [2, 4], indirect=True)
def test_communicators_that_nobody_frees_take_little(comm: MPI.Intracomm) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with cr.init(comm) as world:
        before = descriptors()
        x, y = np.full(100_000, world.rank + 1.0), np.zeros(100_000)
        for turn in range(SPACIOUS + 8):
            child = world.Split(world.rank % 2)
            given, taken = (x[:3], y[:3]) if turn % 4 else (x, y)
            child.Allreduce(given, taken, algorithm="shared" if child.size > 1 else "native")
            ranks = range(world.rank % 2, world.size, 2)
            assert y[0] == sum(rank + 1 for rank in ranks), turn
        assert descriptors() < before + SPACIOUS
        if child.size > 1:
            memory = child._service.world.node_memory
            assert memory.copy_buffer_bytes <= 2 * LEAST_BYTES
