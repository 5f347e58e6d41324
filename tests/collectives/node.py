"""Node memory for threads that play its ranks, since kernels let go of the GIL."""

from __future__ import annotations

from typing import Any

import numpy as np

from closeranks.collectives.reduction.compiled_ops import combiner_of
from closeranks.collectives.shm import segment_layout as kernels
from closeranks.collectives.shm.segment import rings

ITEM = 8
LIMIT = 100_000
#: So many arrays can be within reach.
ROWS = 16


class Node:
    """Node memory for threads that play its ranks."""

    def __init__(self, size: int, stream: int, copy_buffer: int = 1024) -> None:
        self.size = size
        counters = 2 * size * kernels.LINE
        copy_buffers, result_buffers = rings(size, copy_buffer)
        raw = np.zeros(counters + size * (copy_buffers + result_buffers) + 4096 + 64, np.uint8)
        self.memory = raw[-raw.ctypes.data % 64 :]
        self.abort, self.reach = np.zeros(1, np.int64), np.zeros(1 + 2 * ROWS, np.int64)
        self.frames, self.states, self.scratch = [], [], []
        combiner = combiner_of("SUM", np.dtype(np.int64))
        assert combiner is not None
        for rank in range(size):
            frame, base = np.zeros(kernels.FRAME, np.int64), self.memory.ctypes.data
            frame[kernels.SIZE], frame[kernels.RANK], frame[kernels.FLAGS] = size, rank, base
            frame[kernels.COPY_BUFFERS], frame[kernels.COPY_BUFFER] = base + counters, copy_buffer
            frame[kernels.RESULT_BUFFERS] = base + counters + size * copy_buffers
            frame[kernels.COPY_BUFFER_RING], frame[kernels.RESULT_BUFFER_RING] = (
                copy_buffers,
                result_buffers,
            )
            frame[kernels.ABORT] = self.abort.ctypes.data
            frame[kernels.ITEM], frame[kernels.SPINS] = ITEM, 2000
            frame[kernels.PAIR : kernels.ROOT] = combiner
            self.scratch.append(np.zeros(kernels.BLOCK, np.uint8))
            frame[kernels.SCRATCH] = self.scratch[-1].ctypes.data
            frame[kernels.STREAM] = frame[kernels.CACHE] = stream
            frame[kernels.ARRAYS] = self.reach.ctypes.data
            self.frames.append(frame)
            self.states.append(np.zeros(kernels.STATE, np.int64))
            self.states[-1][kernels.PAST] = stream == 0

    def show(self, array: Any) -> None:
        """Let all ranks reach an array."""
        row = self.reach[0]
        first = array.ctypes.data
        self.reach[1 + 2 * row : 3 + 2 * row] = first, first + array.nbytes
        self.reach[0] = row + 1

    def hide(self) -> None:
        """Let nobody reach any array of another one."""
        self.reach[:] = 0

    def run(self, rank: int, kernel: Any, source: Any, target: Any, nbytes: int, root: int) -> None:
        """Run a kernel to its end on one thread."""
        frame = self.frames[rank].copy()
        frame[kernels.ROOT] = root
        places = (x.ctypes.data for x in (frame, self.states[rank], source, target))
        given = (*places, nbytes)
        for _ in range(LIMIT):
            if kernel(*given):
                return
        raise TimeoutError(f"{kernel} of rank {rank} is not over")


def numbers(rank: int, n: int) -> Any:
    return np.arange(n, dtype=np.int64) * 3 + 1000 * rank


NAMES = [
    "allreduce_one_shot", "allreduce_two_shot", "barrier", "bcast", "reduce", "allgather",
    "alltoall", "reduce_scatter_block",
]  # fmt: skip


def expected(name: str, given_: list[Any], rank: int, root: int) -> Any:
    """What an operation leaves on a rank."""
    total = np.sum(given_, axis=0)
    n = len(total) // len(given_)
    own = slice(rank * n, (rank + 1) * n)
    match name:
        case "bcast":
            return given_[root]
        case "allgather":
            return np.concatenate(given_)
        case "alltoall":
            return np.concatenate([x[own] for x in given_])
        case "reduce_scatter_block":
            return total[own]
        case "reduce" if rank != root:
            return total[:0]
        case "barrier":
            return total[:0]
    return total
