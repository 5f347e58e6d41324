"""MPI datatypes as strided blocks, against the order of MPI_Pack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.comms.buffers import packing
from closeranks.comms.buffers.buffer_spec import message
from closeranks.comms.buffers.strided_block import StridedBlock, block, of_array
from closeranks.comms.buffers.typemap import typemap

NAMED = (MPI.BYTE, MPI.SHORT, MPI.FLOAT, MPI.DOUBLE, MPI.C_DOUBLE_COMPLEX, MPI.DOUBLE_INT)
SMALL = st.integers(1, 3)


@st.composite
def recipes(draw: Any, depth: int = 3) -> tuple[Any, ...]:
    """Say how to make a datatype: a named one, or a constructor and its arguments."""
    if not depth or not draw(st.integers(0, 3)):
        return (draw(st.integers(0, len(NAMED) - 1)),)
    inner = draw(recipes(depth - 1))
    size = draw(SMALL)
    choices: list[tuple[Any, ...]] = [
        ("contiguous", size),
        ("vector", size, draw(SMALL), draw(st.integers(3, 5))),
        ("hvector", size, draw(SMALL), draw(st.integers(60, 70))),
        ("subarray", *_part(draw)),
        ("resized", 0, draw(st.integers(20, 90))),
        ("dup",),
        ("indexed_block", draw(SMALL), [2 + 4 * i for i in range(size)]),
        ("hindexed_block", draw(SMALL), [3 + 90 * i for i in range(size)]),
        ("indexed", [2] * size, [1 + 5 * i for i in range(size)]),
        ("hindexed", [draw(SMALL)] * size, [80 * i for i in range(size)]),
    ]
    return (*draw(st.sampled_from(choices)), inner)


def _part(draw: Any) -> tuple[list[int], list[int], list[int], int]:
    sizes = draw(st.lists(SMALL, min_size=1, max_size=3))
    parts = [draw(st.integers(1, n)) for n in sizes]
    starts = [draw(st.integers(0, n - p)) for n, p in zip(sizes, parts, strict=True)]
    return sizes, parts, starts, draw(st.sampled_from([MPI.ORDER_C, MPI.ORDER_F]))


@contextmanager
def _made(recipe: tuple[Any, ...]) -> Iterator[MPI.Datatype]:
    """Make a datatype, and free it and all that it was made of."""
    chain: list[MPI.Datatype] = []
    made = _make(recipe, chain)
    made.Commit()
    try:
        yield made
    finally:
        for one in chain:
            one.Free()


def _make(recipe: tuple[Any, ...], chain: list[MPI.Datatype]) -> MPI.Datatype:
    if len(recipe) == 1:
        made = NAMED[recipe[0]].Dup()
    else:
        name, *arguments, inner = recipe
        method = "Dup" if name == "dup" else f"Create_{name}"
        made = getattr(_make(inner, chain), method)(*arguments)
    chain.append(made)
    return made


def _pack(datatype: MPI.Datatype, count: int, memory: NDArray[Any]) -> NDArray[np.uint8]:
    """Let the library pack."""
    out = np.empty(count * datatype.Get_size(), np.uint8)
    if out.size:
        region = MPI.buffer.fromaddress(memory.ctypes.data, count * datatype.Get_extent()[1])
        datatype.Pack(region, out, 0, MPI.COMM_SELF)
    return out


def _offsets(datatype: MPI.Datatype, count: int) -> list[int]:
    """Find the places of the bytes as MPI_Pack sees them, by packing their numbers."""
    numbers = np.arange(1 << 16, dtype=np.uint32)
    low, high = (
        _pack(datatype, count, (numbers >> shift).astype(np.uint8)).astype(int) for shift in (0, 8)
    )
    places: list[int] = (low + 256 * high).tolist()
    return places


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(recipes(), st.integers(1, 3))
def test_datatypes_list_their_bytes_in_the_order_of_pack(
    recipe: tuple[Any, ...], count: int
) -> None:
    with _made(recipe) as datatype:
        found = typemap(datatype)
        assert found is not None
        assert found.nbytes == datatype.Get_size()
        several = found.repeated(count, datatype.Get_extent()[1])
        if several.nbytes and several.offsets().max() < 1 << 16:
            assert several.offsets().tolist() == _offsets(datatype, count)


def test_one_part_of_an_array_has_one_block() -> None:
    cube = np.zeros((6, 7, 8), np.float32)
    part = of_array(cube[1:3, 2:6, 3]).shifted((1 * 56 + 2 * 8 + 3) * 4)
    row = MPI.FLOAT.Create_vector(4, 1, 8)
    made = [
        MPI.FLOAT.Create_subarray([6, 7, 8], [2, 4, 1], [1, 2, 3]),
        MPI.FLOAT.Create_subarray([8, 7, 6], [1, 4, 2], [3, 2, 1], MPI.ORDER_F),
        row.Create_hindexed_block(1, [300, 524]),
    ]
    assert [typemap(one) for one in made] == [part] * 3
    for one in (*made, row):
        one.Free()


def test_what_is_not_regular_is_none() -> None:
    made = [
        MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]),
        MPI.INT.Create_indexed([1, 2], [0, 4]),
        MPI.INT.Create_indexed_block(1, [0, 1, 5]),
        MPI.SHORT_INT.Create_contiguous(3),
        MPI.INT.Create_darray(1, 0, [8], [MPI.DISTRIBUTE_BLOCK], [MPI.DISTRIBUTE_DFLT_DARG], [1]),
    ]
    assert [typemap(one) for one in made] == [None] * len(made)
    for one in made:
        one.Free()


def test_the_block_goes_with_the_datatype() -> None:
    for length in (2, 3):  # the second may get the handle of the first
        datatype = MPI.INT.Create_vector(5, length, 7)
        assert typemap(datatype) is typemap(datatype)
        assert typemap(datatype) == StridedBlock(0, (5,), (28,), 4 * length)
        datatype.Free()
    empty = MPI.INT.Create_contiguous(0)
    assert typemap(empty) == block(0, (), 0)
    empty.Free()


def test_messages_of_derived_datatypes() -> None:
    rows = np.random.default_rng(3).random((2000, 50))
    regular = MPI.DOUBLE.Create_vector(1000, 3, 50)
    part = MPI.DOUBLE.Create_subarray((2000, 50), (1500, 7), (400, 31))
    uneven = MPI.DOUBLE.Create_hindexed([3, 4], [0, 80])
    for made, count in ((regular, 2), (part, 1), (uneven, 1000)):
        kind = made.Create_resized(0, made.Get_true_extent()[1]).Commit()
        found = message([rows, count, kind], "Bcast", writable=True)
        assert found.nbytes >= packing.LEAST
        assert (typemap(kind) is not None) == (made is not uneven)
        packed = _pack(kind, count, rows)
        assert found.data().tobytes() == packed.tobytes()
        expected = rows.copy()
        region = MPI.buffer.fromaddress(expected.ctypes.data, count * kind.Get_extent()[1])
        kind.Unpack(packed[::-1].copy(), 0, region, MPI.COMM_SELF)
        found.store(packed[::-1].copy())
        assert rows.tobytes() == expected.tobytes()
        kind.Free()
        made.Free()
