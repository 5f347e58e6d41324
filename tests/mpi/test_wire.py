"""Half-precision sums that travel in float32: rounded once, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.comms.topology.topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

World = cr.Communicator
COUNT = 37
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
#: Node of each rank.
MAPS = {3: [0, 0, 1], 4: [0, 0, 1, 1]}


def everybody(size: int, dtype: np.dtype[Any], count: int, *, near: float = 0.0) -> Array:
    """What every rank puts in, shape (size, count); of very different magnitudes."""
    random = np.random.default_rng([size, count])
    numbers = random.standard_normal((size, count)) * 2.0 ** random.integers(-5, 6, (size, count))
    return (near + numbers * (0.01 if near else 1.0)).astype(dtype)


def ulp(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """The distance of numbers from the next one of their type."""
    kind: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    exponent = np.floor(np.log2(np.maximum(np.abs(numbers), float(kind.smallest_normal))))
    return np.asarray(2.0 ** (exponent - kind.nmant))


def is_rounded_once(result: Array, terms: Array) -> None:
    """Check the bound of sums in float32 that are rounded once."""
    exact, size = terms.astype(np.float64).sum(axis=0), len(terms)
    noise = 2.0**-24 * (size - 1) * np.abs(terms.astype(np.float64)).sum(axis=0)
    error = np.abs(result.astype(np.float64) - exact)
    assert (error <= 0.5 * ulp(exact, result.dtype) * (1 + 1e-9) + noise).all()


class Form(NamedTuple):
    """One call: its arguments, where the result is, and what is summed in it."""

    method: str
    arguments: tuple[Any, ...]
    result: Array
    terms: Array


def forms(rank: int, size: int, dtype: np.dtype[Any]) -> Iterator[Form]:
    """Every call that reduces, in place and not."""
    wide = everybody(size, dtype, COUNT * size)
    short, mine, last = wide[:, :COUNT], slice(rank * COUNT, (rank + 1) * COUNT), size - 1
    counts = [COUNT + r - size // 2 for r in range(size)]
    low = sum(counts[:rank])
    uneven = everybody(size, dtype, sum(counts))

    def both(method: str, given: Array, n: int, terms: Array, *rest: Any) -> Iterator[Form]:
        out = np.zeros(n, dtype)
        yield Form(method, (given.copy(), out, *rest), out, terms)
        inside = given.copy()
        if method != "Reduce" or rank == last:
            yield Form(method, (MPI.IN_PLACE, inside, *rest), inside[:n], terms)
        else:
            yield Form(method, (inside, None, *rest), inside[:0], terms[:, :0])

    op = MPI.SUM
    yield from both("Allreduce", short[rank], COUNT, short, op)
    at_root = short if rank == last else short[:, :0]
    yield from both("Reduce", short[rank], COUNT if rank == last else 0, at_root, op, last)
    yield from both("Reduce_scatter_block", wide[rank], COUNT, wide[:, mine], op)
    block = uneven[:, low : low + counts[rank]]
    yield from both("Reduce_scatter", uneven[rank], counts[rank], block, counts, op)
    yield from both("Scan", short[rank], COUNT, short[: rank + 1], op)
    if rank:
        yield from both("Exscan", short[rank], COUNT, short[:rank], op)
    else:
        yield from both("Exscan", short[0], COUNT, short[:0], op)


def blocking(world: World, form: Form) -> None:
    getattr(world, form.method)(*form.arguments)


def nonblocking(world: World, form: Form) -> None:
    getattr(world, f"I{form.method.lower()}")(*form.arguments).wait(30)


def persistent(world: World, form: Form) -> None:
    with getattr(world, f"{form.method}_init")(*form.arguments) as operation:
        operation.start()
        operation.wait(30)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("call", [blocking, nonblocking, persistent])
@pytest.mark.parametrize("name", ["auto", "native"])
def test_every_call_is_rounded_once(
    world: World, dtype: np.dtype[Any], call: Callable[[World, Form], None], name: str
) -> None:
    with world.using(algorithm=name, wire="float32"):
        for form in forms(world.rank, world.size, dtype):
            before = form.result.tobytes()
            try:
                call(world, form)
            except cr.UsageError as refused:  # where MPICH is known to be wrong
                if name != "native" or "gets it wrong in place" not in str(refused):
                    raise
                continue
            if form.method == "Exscan" and world.rank == 0:
                assert form.result.tobytes() == before, "rank 0 gets nothing"
            else:
                is_rounded_once(form.result, form.terms)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_on_made_up_nodes_too(comm: MPI.Intracomm, dtype: np.dtype[Any]) -> None:
    if comm.size not in MAPS:
        pytest.skip("nodes of several ranks need at least 3")
    nodes = Topology.from_groups(("node", "rank"), [MAPS[comm.size], list(range(comm.size))])
    given = everybody(comm.size, dtype, 1000)
    with cr.init(comm, topology=nodes) as world:
        for name in ("hierarchical_doubling", "hierarchical_ring", "leader"):
            out = np.empty(1000, dtype)
            with world.using(wire="float32"):
                world.Allreduce(given[world.rank], out, algorithm=name)
            is_rounded_once(out, given)
            assert len(set(comm.allgather(out.tobytes()))) == 1, name


def test_without_it_every_level_rounds(comm: MPI.Intracomm) -> None:
    if comm.size != 4:
        pytest.skip("two nodes of two ranks")
    nodes = Topology.regular(node=2, rank=2)
    x, y = np.full(2, 2048 if comm.rank == 0 else 1, np.float16), np.zeros(2, np.float16)
    with cr.init(comm, topology=nodes) as world, world.using(algorithm="hierarchical_doubling"):
        world.Allreduce(x, y)
        # 2048 + 1 is 2048 in float16, then come 2 more from the other node.
        assert y.tolist() == [2050, 2050]
        with world.using(wire=np.float32):
            world.Allreduce(x, y)
        assert y.tolist() == [2052, 2052], "2051 lies halfway and goes to the even one"
        assert world.statistics().bytes_per_level["node"] == 2 + 4


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_means_and_products(world: World, dtype: np.dtype[Any]) -> None:
    given = everybody(world.size, dtype, COUNT, near=1.0)
    exact, y = given.astype(np.float64), np.empty(COUNT, dtype)
    slack = 2.0**-24 * 2 * world.size
    with world.using(wire="float32"):
        for op, wanted in ((cr.MEAN, exact.mean(axis=0)), (MPI.PROD, exact.prod(axis=0))):
            for name in ("auto", "native", "ring"):
                world.Allreduce(given[world.rank], y, op, algorithm=name)
                limit = 0.5 * ulp(wanted, dtype) * (1 + 1e-9) + slack * np.abs(wanted)
                assert (np.abs(y.astype(np.float64) - wanted) <= limit).all()


def test_gaps_and_the_callers_input_stay(world: World) -> None:
    given = everybody(world.size, HALVES[0], COUNT)
    x, y = np.zeros((COUNT, 2), HALVES[0]), np.full((COUNT, 2), 7, HALVES[0])
    x[:, 1] = given[world.rank]
    with world.using(wire="float32"):
        for name in ("native", "ring", "auto"):
            world.Allreduce(x[:, 1], y[:, 0], algorithm=name)
            is_rounded_once(y[:, 0], given)
            assert (x[:, 1] == given[world.rank]).all()
            assert (y[:, 1] == 7).all()


def test_a_persistent_operation_keeps_the_wire_it_was_made_with(world: World) -> None:
    x, y = np.zeros(1, np.float16), np.zeros(1, np.float16)
    for name in ("native", "recursive_doubling"):
        with world.using(wire="float32"):
            operation = world.Allreduce_init(x, y, algorithm=name)
        for turn in range(3):
            x[:] = turn + world.rank * 2.0**-12
            operation.start()
            operation.wait()
            tails = sum(range(world.size)) * 2.0**-12
            assert y[0] == np.float16(turn * world.size + tails)
        operation.close()


def test_overflow_warns_nobody(world: World) -> None:
    x = np.full(3, 6e4, np.float16)
    with world.using(wire="float32"):
        world.Allreduce(MPI.IN_PLACE, x)
    assert np.isinf(x).all() == (world.size > 1)


def test_what_it_is_not_for(world: World) -> None:
    y = np.zeros(3, np.float16)
    with world.using(wire="float32"):
        world.Allreduce(np.full(3, world.rank, np.float16), y, MPI.MAX)
        assert (y == world.size - 1).all()
        world.Bcast(y)
        z = np.full(3, world.rank, np.float32)
        world.Allreduce(MPI.IN_PLACE, z)
        assert (z == sum(range(world.size))).all()
        for other in (np.float64, np.int32, np.complex64):
            with pytest.raises(cr.UsageError, match="no wire for"):
                world.Allreduce(np.zeros(3, other), np.zeros(3, other))
    wrongs: tuple[Any, ...] = ("float64", "fast", np.int8, 3)
    for wrong in wrongs:
        with pytest.raises(cr.UsageError, match="no wire"), world.using(wire=wrong):
            pass


def test_it_is_the_same_everywhere(world: World) -> None:
    if world.size == 1:
        return
    with pytest.raises(cr.Disagreement), world.using(wire=None if world.rank else "float32"):
        pass


def test_explain_says_where_it_rounds(world: World) -> None:
    with world.using(algorithm={"allreduce": "ring"}):
        plain = world.explain("allreduce", 4800, "float16")
        with world.using(wire="float32"):
            wide = world.explain("allreduce", 4800, "float16")
            assert world.explain("allreduce", 4800).rounding == ""
            assert "native" in world.explain("allreduce", 4800, "bfloat16").candidates
    assert "every operation" in plain.rounding
    assert wide.rounding == "float16: sums and products travel in float32, rounded once at the end"
    assert (wide.nbytes, wide.algorithm) == (4800, "ring")
    for level, nbytes in plain.bytes_per_level.items():
        assert wide.bytes_per_level[level] in (2 * nbytes, 0)
