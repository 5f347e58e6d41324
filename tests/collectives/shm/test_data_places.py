"""Kernels that read and write arrays where they lie."""

from __future__ import annotations

import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.collectives.engine.leaves import load_kernel
from closeranks.collectives.shm import segment_layout as words
from closeranks.collectives.shm.data_places import take_copy_buffer, take_result_buffer
from closeranks.collectives.shm.segment import NEVER, rings
from tests.collectives.node import ITEM, NAMES, Node, expected, numbers

#: Elements that are too few to be read in place, just enough, and enough for many segments.
COUNTS = (words.SHORT // ITEM, words.SHORT // ITEM + 1, 1500)


class Call:
    """One call of a kernel by all ranks, of whose arrays some are within reach.

    Every rank overwrites what it gave as soon as its call is over, and may come
    late.
    """

    def __init__(self, node: Node, name: str, n: int, root: int, seed: int) -> None:
        self.node, self.name, self.n, self.root = node, name, n, root
        self.choice = random.Random(seed)
        size = node.size
        wide = size if name in ("alltoall", "reduce_scatter_block") else 1
        self.given = [numbers(rank, n * wide) for rank in range(size)]
        self.taken = [np.full(n * size, -1, np.int64) for _ in range(size)]
        self.wanted = [expected(name, self.given, rank, root) for rank in range(size)]
        self.buffers = [self._buffers(rank) for rank in range(size)]
        self.delays = [self.choice.choice((0, 0, 1e-4, 2e-3)) for _ in range(size)]

    def _buffers(self, rank: int) -> tuple[Any, Any]:
        """Choose a rank's arrays: in place or not, and who is within reach."""
        given_, taken = self.given[rank].copy(), self.taken[rank]
        if self.choice.random() < 0.5:
            self.node.show(taken)
        if self._may_be_in_place(rank) and self.choice.random() < 0.5:
            own = slice(rank * self.n, None) if self.name == "allgather" else slice(None)
            taken[own][: len(given_)] = given_
            return taken[own][: len(given_)], taken
        if self.choice.random() < 0.5:
            self.node.show(given_)
        return given_, taken

    def _may_be_in_place(self, rank: int) -> bool:
        if self.name in ("reduce", "bcast"):
            return rank == self.root
        return self.name.startswith("all")

    def run(self, rank: int) -> None:
        """Play a rank."""
        given_, taken = self.buffers[rank]
        time.sleep(self.delays[rank])
        nbytes = self.n * ITEM
        self.node.run(rank, load_kernel(self.name), given_, taken, nbytes, self.root)
        if not np.shares_memory(given_, taken):
            given_[:] = -7

    def check(self) -> None:
        """Run it and look at all results."""
        with ThreadPoolExecutor(self.node.size) as pool:
            for job in [pool.submit(self.run, rank) for rank in range(self.node.size)]:
                job.result(timeout=60)
        self.node.hide()
        for rank, wanted in enumerate(self.wanted):
            assert np.array_equal(self.taken[rank][: len(wanted)], wanted), (self.name, rank)


@pytest.mark.share(4)
@pytest.mark.parametrize("stream", [NEVER, 0])
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_some_arrays_are_within_reach(name: str, size: int, stream: int) -> None:
    node = Node(size, stream)
    for seed in range(9):
        Call(node, name, COUNTS[seed % 3], seed % size, seed).check()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 4),
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 1500), st.integers(0, 3), st.integers()),
        max_size=8,
    ),
)
def test_any_series_of_calls(size: int, series: list[tuple[str, int, int, int]]) -> None:
    node = Node(size, NEVER)
    for name, n, root, seed in series:
        Call(node, name, n, root % size, seed).check()


@pytest.mark.parametrize("name", ["allreduce_two_shot", "allgather", "alltoall", "bcast", "reduce"])
def test_what_was_read_of_who_has_left_is_no_result(name: str) -> None:
    """Rank 0 gives up while rank 1 has yet to read its array, and may change it."""
    node = Node(2, NEVER, copy_buffer=16384)
    kernel: Any = load_kernel(name)
    buffers = [(np.ones(2000, np.int64), np.ones(2000, np.int64)) for _ in range(2)]
    node.show(buffers[0][0])

    def look(rank: int) -> bool:
        frame = node.frames[rank].copy()
        frame[words.ROOT] = name == "reduce"
        places = [x.ctypes.data for x in (frame, node.states[rank], *buffers[rank])]
        return bool(kernel(*places, 1000 * ITEM))

    assert not look(0), "somebody has yet to read its array"
    node.abort[0] = 1
    assert not look(1)
    assert not look(1)
    told = node.memory[(2 + words.REDUCED) * words.LINE :][:8].view(np.int64)
    assert not told.any()


def test_a_late_rank_writes_into_no_array_of_who_has_left() -> None:
    node = Node(2, NEVER)
    kernel: Any = load_kernel("allreduce_two_shot")
    data = [numbers(rank, 3000) for rank in range(2)]
    for x in data:
        node.show(x)

    def look(rank: int) -> bool:
        places = [x.ctypes.data for x in (node.frames[rank], node.states[rank])]
        return bool(kernel(*places, *[data[rank].ctypes.data] * 2, data[rank].nbytes))

    assert not look(0)
    node.abort[0] = 1
    data[0][:] = 5
    assert not look(1)
    assert (data[0] == 5).all()


@pytest.mark.parametrize("size", [2, 3])
def test_a_vector_within_reach_is_reduced_in_one_segment(size: int) -> None:
    node = Node(size, NEVER)
    data = [numbers(rank, 3000) for rank in range(size)]
    total, kernel = np.sum(data, axis=0), load_kernel("allreduce_two_shot")
    for x in data:
        node.show(x)
    with ThreadPoolExecutor(size) as pool:
        jobs = [pool.submit(node.run, r, kernel, x, x, x.nbytes, 0) for r, x in enumerate(data)]
        for job in jobs:
            job.result(timeout=60)
    assert all(np.array_equal(x, total) for x in data)
    assert [state[words.START] for state in node.states] == [1] * size


@given(
    size=st.integers(2, 9),
    lengths=st.lists(
        st.one_of(st.integers(12289, 1 << 14), st.integers(1, 200), st.just(1 << 14)), max_size=200
    ),
    wanted=st.sampled_from([0, 100_000]),
)
def test_what_others_may_read_is_not_taken_again(
    size: int, lengths: list[int], wanted: int
) -> None:
    node = Node(size, NEVER, copy_buffer=1 << 14)
    frame, state = node.frames[0], node.states[0]
    frame[[words.COPY_BUFFER_RING, words.RESULT_BUFFER_RING]] = rings(size, 1 << 14, wanted)
    copy_buffers, result_buffers = [(0, 0)] * words.COPY_BUFFERS_EACH, [(0, 0)] * 2
    for q, length in enumerate(lengths):
        chunk = length // size
        copy_buffers = [*copy_buffers[1:], (int(take_copy_buffer(frame, state, length)), length)]
        place = int(
            take_result_buffer(frame, state, q, chunk, q % 64) - frame[words.RESULT_BUFFERS]
        )
        result_buffers = [*result_buffers[1:], (place, chunk)]
        for read, ring in (
            (copy_buffers, words.COPY_BUFFER_RING),
            (result_buffers, words.RESULT_BUFFER_RING),
        ):
            spans = sorted((first, first + count) for first, count in read if count > 0)
            assert all(first >= 0 and end <= frame[ring] for first, end in spans)
            assert all(end <= first for (_, end), (first, _) in itertools.pairwise(spans))
