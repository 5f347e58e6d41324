"""Packing by compiled loops, against NumPy and against MPI_Pack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.comms.buffers import packing
from closeranks.comms.buffers.buffer_spec import message, vector
from closeranks.comms.buffers.strided_block import block, of_array

RANDOM = np.random.default_rng(20)
CUBE = RANDOM.integers(0, 255, (24, 96, 320), np.uint8)
RUNS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 31, 32, 33, 48, 64, 65, 96, 200)


def _spaced(run: int, gap: int) -> NDArray[np.void]:
    """Give more runs than `packing.LEAST` needs, some bytes apart."""
    count = 2 * packing.LEAST // run + 3
    whole = RANDOM.integers(0, 255, count * (run + gap), np.uint8)
    return np.ndarray((count,), f"V{run}", whole, 0, (run + gap,))


def _bytes(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _packed(array: NDArray[Any]) -> bytes:
    out = np.empty(array.nbytes, np.uint8)
    assert packing.gather(array, 0, of_array(array), out)
    return out.tobytes()


def _check_both_ways(array: NDArray[Any]) -> None:
    """Pack and unpack by the loops; what lies between must stay."""
    data = RANDOM.integers(0, 255, array.nbytes, np.uint8)
    assert _packed(array) == _bytes(array)
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    before = root.copy()
    assert packing.scatter(data, array, 0, of_array(array))
    assert _bytes(array) == data.tobytes()
    changed = np.count_nonzero(root.reshape(-1).view(np.uint8) != before.reshape(-1).view(np.uint8))
    assert changed <= array.nbytes


@pytest.mark.parametrize("run", RUNS)
def test_runs_of_every_length(run: int) -> None:
    for gap in (run, 1, 130, 5000):
        _check_both_ways(_spaced(run, gap))


@pytest.mark.parametrize("view", [
    CUBE[:, :, 7::3], CUBE[:, ::-2, :100], CUBE[::-1, 5:90, 300:20:-1], CUBE[2:20, 3:80, 16:316],
    CUBE.transpose(2, 0, 1)[::3], CUBE.view(np.float32)[:, :, 5:70], CUBE.view("c16")[:, 1::2, ::2],
], ids=str)  # fmt: skip
def test_views_of_three_dimensions(view: NDArray[Any]) -> None:
    _check_both_ways(view.copy()[...] if view.flags.c_contiguous else view)


def test_elements_seen_twice_are_read_and_never_scattered() -> None:
    line = np.arange(4096, dtype=np.int32)
    rows = np.lib.stride_tricks.sliding_window_view(line, 64)
    assert _packed(rows) == _bytes(rows)
    twice = np.ndarray((2, 8192), np.int32, np.zeros(8192, np.int32).data, 0, (0, 4))
    zeros = np.zeros(65536, np.uint8)
    assert not packing.scatter(zeros, twice, 0, of_array(twice))
    data = np.arange(16384, dtype=np.int32)
    packing.fill(data.view(np.uint8), twice, 0, twice.size)
    assert (twice == data[8192:]).all()


@pytest.mark.parametrize(("run", "distance", "reads", "writes"), [
    (16, 2048, True, False), (16, 4096, True, False), (64, 16384, False, False),
    (16, 4112, True, True), (4, 16384, True, True), (256, 16384, True, True),
])  # fmt: skip
def test_runs_that_meet_in_few_sets_are_left_to_others(
    run: int, distance: int, reads: bool, writes: bool
) -> None:
    rows = np.zeros((4100, distance), np.uint8)[:, :run]
    rows[...] = RANDOM.integers(0, 255, rows.shape, np.uint8)
    expected, out = _bytes(rows), np.empty(rows.nbytes, np.uint8)
    assert packing.gather(rows, 0, of_array(rows), np.empty(rows.nbytes, np.uint8)) is reads
    assert packing.scatter(out, rows, 0, of_array(rows)) is writes
    rows[...] = np.frombuffer(expected, np.uint8).reshape(rows.shape)
    ways = packing.packer(rows.shape, rows.strides, rows.itemsize)
    ways.gather(out, rows)
    assert out.tobytes() == expected
    rows[...] = 0
    ways.scatter(rows, out)
    assert _bytes(rows) == expected


def test_few_bytes_and_many_loops_are_left_to_others() -> None:
    few, deep = block(0, [(2, 100)], 4), block(0, [(9, 10**n) for n in (5, 4, 3, 2)], 8)
    for one in (few, deep):
        assert not packing.gather(CUBE, 0, one, np.empty(one.nbytes, np.uint8))


@pytest.mark.parametrize("count", [None, 1, 3000, 6100])
def test_messages_of_arrays_with_gaps(count: int | None) -> None:
    view = RANDOM.random((100, 3, 128))[:, 1, ::2]
    found = message([view, count, MPI.DOUBLE], "Bcast", writable=True)
    first = view.reshape(-1)[: found.count].copy()
    assert found.data().tobytes() == first.tobytes()
    rest = view.reshape(-1)[found.count :].copy()
    found.store((first + 1).view(np.uint8))
    assert (view.reshape(-1)[: found.count] == first + 1).all()
    assert (view.reshape(-1)[found.count :] == rest).all()


def test_vectors_of_arrays_with_gaps() -> None:
    view = RANDOM.random((300, 256))[:, ::2]
    for counts, places in (([12800, 12800, 12800], None), ([6400, 1, 20000], [128, 0, 12900])):
        found = vector([view, (counts, places), MPI.DOUBLE], "Gatherv", 3, writable=True)
        starts = found.displacements.tolist()
        flat = view.reshape(-1)
        expected = np.concatenate([flat[a : a + n] for a, n in zip(starts, counts, strict=True)])
        assert found.data().tobytes() == expected.tobytes()
        found.store((-expected).view(np.uint8))
        assert found.data().tobytes() == (-expected).tobytes()
        found.store(expected.view(np.uint8))


def test_read_only_arrays_are_packed() -> None:
    view = np.broadcast_to(RANDOM.random((64, 1, 8)), (64, 32, 8))
    assert message(view, "Bcast").data().tobytes() == _bytes(view)


@pytest.mark.parametrize("kind", ["f2", "M8[s]", "S5", "bfloat16", ">f4", "b,f8"])
def test_every_type_of_element(kind: str) -> None:
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    view = RANDOM.integers(0, 255, 60000 * dtype.itemsize, np.uint8).view(dtype)[::2]
    out = np.empty(view.nbytes, np.uint8)
    packing.pack(view, 0, view.size, out)
    assert out.tobytes() == _bytes(view)
    packing.fill(out, view, 0, view.size)
    assert _bytes(view) == out.tobytes()
