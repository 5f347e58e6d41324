"""The kernels in node memory: threads stand for ranks, since kernels let go of the GIL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.collectives.engine.leaves import load_kernel
from closeranks.collectives.shm import segment_layout as kernels
from closeranks.collectives.shm.segment import NEVER
from tests.collectives.node import ITEM, NAMES, Node, expected, numbers


def play(node: Node, name: str, n: int, root: int) -> None:
    """Run an operation on all ranks and check every result."""
    size, nbytes = node.size, n * ITEM
    wide = name in ("alltoall", "reduce_scatter_block")
    given_ = [numbers(rank, n * size if wide else n) for rank in range(size)]
    taken = [np.full(n * size, -1, np.int64) for _ in range(size)]
    kernel = load_kernel(name)
    with ThreadPoolExecutor(size) as pool:
        jobs = [
            pool.submit(node.run, rank, kernel, given_[rank], taken[rank], nbytes, root)
            for rank in range(size)
        ]
        for job in jobs:
            job.result(timeout=60)
    for rank in range(size):
        wanted = expected(name, given_, rank, root)
        assert np.array_equal(taken[rank][: len(wanted)], wanted), (name, n, rank)


@pytest.mark.share(3)
@pytest.mark.parametrize("stream", [NEVER, 0])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_results(name: str, size: int, stream: int) -> None:
    node = Node(size, stream)
    for n in (0, 1, 7, 128, 129, 1000):
        for root in range(size if name in ("bcast", "reduce") else 1):
            play(node, name, n, root)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 4),
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 700), st.integers(0, 3)), max_size=12
    ),
)
def test_any_series_of_operations(size: int, series: list[tuple[str, int, int]]) -> None:
    node = Node(size, NEVER)
    for name, n, root in series:
        play(node, name, n, root % size)


@pytest.mark.parametrize("offset", [0, 1, 8, 56])
def test_results_past_the_caches_lie_anywhere_in_a_line(
    offset: int,
) -> None:
    node, n = Node(3, 0, copy_buffer=16 * kernels.PIECE), 10 * kernels.PIECE // ITEM + 3
    given_ = [numbers(rank, n) for rank in range(3)]
    kernel, nbytes = load_kernel("allreduce_two_shot"), n * ITEM
    taken = []
    for rank in range(3):
        memory = np.full(nbytes + 256, 255, np.uint8)
        start = -memory.ctypes.data % 64 + 64 + rank * offset
        taken.append((memory, slice(start, start + nbytes)))
    with ThreadPoolExecutor(3) as pool:
        jobs = [
            pool.submit(node.run, rank, kernel, given_[rank], memory[part], nbytes, 0)
            for rank, (memory, part) in enumerate(taken)
        ]
        for job in jobs:
            job.result(timeout=60)
    for memory, part in taken:
        assert memory[part].tobytes() == np.sum(given_, axis=0).tobytes()
        assert (memory[: part.start] == 255).all()
        assert (memory[part.stop :] == 255).all()


def test_in_place() -> None:
    node = Node(3, NEVER)
    data = [numbers(rank, 500) for rank in range(3)]
    total = np.sum(data, axis=0)
    with ThreadPoolExecutor(3) as pool:
        kernel = load_kernel("allreduce_two_shot")
        jobs = [pool.submit(node.run, r, kernel, x, x, x.nbytes, 0) for r, x in enumerate(data)]
        for job in jobs:
            job.result(timeout=60)
    assert all(np.array_equal(x, total) for x in data)


def test_a_kernel_comes_back_when_others_do_not_come() -> None:
    node = Node(2, NEVER)
    x = numbers(0, 10)
    places = (one.ctypes.data for one in (node.frames[0], node.states[0], x, x))
    arguments = (*places, x.nbytes)
    assert not load_kernel("allreduce_two_shot")(*arguments)
    node.abort[0] = 1
    assert not load_kernel("allreduce_two_shot")(*arguments)


def test_a_rank_learns_which_way_of_laying_out_costs_less() -> None:
    node = Node(2, 0, copy_buffer=2 * kernels.TIMED)
    for state in node.states:
        state[kernels.PAST] = 0
    for _ in range(kernels.FIRST):
        play(node, "allgather", kernels.TIMED // ITEM, 0)
    for state in node.states:
        ways = [state[way + kernels.LEAST] for way in (kernels.THROUGH, kernels.BEYOND)]
        assert min(ways) > 0, "both ways have been tried"
