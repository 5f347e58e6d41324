"""Calls whose sizes and kinds change: right in any order, and small in memory."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks as cr

World = cr.Communicator
SIZES = 100_000


def resident_bytes() -> int:
    """Give the memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("world", [1, 2], indirect=True)
def test_a_hundred_thousand_sizes_take_no_more_memory_than_a_tenth(world: World) -> None:
    sizes = np.random.default_rng(1).permutation(np.arange(1, SIZES + 1)).tolist()
    x, y = np.ones(SIZES, np.uint8), np.ones(SIZES, np.uint8)
    for n in sizes[: SIZES // 10]:
        world.Allreduce(x[:n], y[:n], MPI.MAX)
    before = resident_bytes()
    for n in sizes[SIZES // 10 :]:
        world.Allreduce(x[:n], y[:n], MPI.MAX)
    assert resident_bytes() - before <= 1 << 20
    assert world.statistics().calls == {"allreduce": SIZES}


KINDS: list[tuple[str, MPI.Op, Any]] = [
    ("f8", MPI.SUM, np.sum),
    ("f4", MPI.SUM, np.sum),
    ("i4", MPI.MAX, np.max),
    ("u1", MPI.BXOR, np.bitwise_xor.reduce),
]


def spread(count: int, dtype: str, step: int) -> NDArray[Any]:
    """Make an array, with gaps where ``step`` is 2."""
    return np.zeros(count * step, dtype)[::step]


@pytest.mark.parametrize("made_by", ["Dup", "Split", "init"])
def test_sizes_kinds_and_forms_in_any_order_give_right_sums(world: World, made_by: str) -> None:
    """Each rank goes its own way: some of its arrays have gaps, some stand in lists."""
    shared, own = random.Random(made_by), random.Random(world.rank)
    make: dict[str, Any] = {
        "Dup": world.Dup,
        "Split": world.Split,
        "init": lambda: cr.init(MPI.Intracomm(world)),
    }
    with make[made_by]() as comm:
        for number in range(1500):
            dtype, op, combine = shared.choice(KINDS)
            count = shared.choice((1, 3, 40, 900, 5000))
            x, y = (spread(count, dtype, own.choices((1, 2), (9, 1))[0]) for _ in "xy")
            every = [(np.arange(count) % 7 + rank).astype(dtype) for rank in range(comm.size)]
            x[:] = every[comm.rank]
            is_listed = own.random() < 0.1 and x.flags.c_contiguous
            comm.Allreduce([x, x.size, x.dtype.char] if is_listed else x, y, op)
            expected = combine(every, axis=0).astype(dtype)
            np.testing.assert_array_equal(y, expected, f"call {number}")
