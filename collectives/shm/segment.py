"""The memory in which the ranks of a node work together.

One shared file holds the counters, copy buffers and result buffers of all
ranks; `closeranks.collectives.shm.allreduce_kernels` tells their use.  A world
makes the memory when the first kernel needs it.  Where node memory is short,
the copy buffers are smaller.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.reduction.compiled_ops import Combiner
from closeranks.collectives.shm import segment_layout as kernels
from closeranks.collectives.shm.shared_arrays import reach_of
from closeranks.comms.discovery.sysfs import l3_share
from closeranks.comms.shm.shared_file import SharedFile, share
from closeranks.comms.wait import is_crowded
from closeranks.errors import Unavailable

if TYPE_CHECKING:
    from mpi4py import MPI

#: Stands in the place of a step: a call has begun a kernel, and lets it go on where
#: others ask for it, see `closeranks.collectives.dispatch.persistent_creation`.
STARTED: Final = -1
#: Bytes of a rank's chunk of a copy buffer: from here on copies need not read what they
#: overwrite.  Copy buffers of more than so many chunks would fill the caches.
CHUNK_BYTES: Final = 128 * 1024
MOST_CHUNKS: Final = 4
#: Bytes of a rank's copy buffers.  A copy buffer that has left the second-level caches of its
#: writer and its reader is cheaper to write again than one that is still in both.
RING_BYTES: Final = 2 * 1024 * 1024
#: The smallest copy buffer.
LEAST_BYTES: Final = 16 * 1024
_PAGE: Final = 4096
#: So many communicators of a process have such copy buffers.  A program that makes more of them
#: than it frees has small ones in the others.
SPACIOUS: Final = 16
_SMALL_BYTES: Final = 2 * LEAST_BYTES
_open: Final = weakref.WeakSet["NodeMemory"]()
#: From so many bytes on, copies to copy and result buffers may go past the caches; or never.
STREAMING: Final = 4096
NEVER: Final = 1 << 62
#: How long a kernel looks before it gives the thread back: where every rank has a
#: core, and where they share cores.
_PATIENCE: Final = (2000, 50)
_CROWDED: Final = (0, 50)


class NodeMemory:
    """Counters, copy buffers and result buffers of the ranks of one node.

    Collective over ``node`` to make.

    Parameters
    ----------
    node : MPI.Intracomm
        Ranks that share memory, at least two.
    abort : int
        Address of the world's abort word.
    root : Path, optional
        The file system in memory; /dev/shm.

    Attributes
    ----------
    copy_buffer_bytes : int
        Size of a copy buffer.
    state : ndarray, dtype int64
        How far this rank has come; only kernels write it.
    turns : deque
        ``(execution, step)``, in the order in which all ranks run them; where the
        step is `STARTED` the other one has ``advance()``.
    queue_at : int
        Address of an int64: how many these are.

    Raises
    ------
    Unavailable
        On all ranks, if node memory has no room even for small copy buffers.
    """

    def __init__(self, node: MPI.Intracomm, abort: int, *, root: Any = None) -> None:
        self.state = np.zeros(kernels.STATE, np.int64)
        self.turns: deque[tuple[Any, int]] = deque()
        self._queue, self._lock = np.zeros(1, np.int64), threading.Lock()
        self.queue_at = self._queue.ctypes.data
        self._frames: dict[tuple[Combiner | None, int, int], NDArray[np.int64]] = {}
        is_spacious = max(node.allgather(len(_open))) < SPACIOUS
        self.copy_buffer_bytes = (
            CHUNK_BYTES * min(node.size, MOST_CHUNKS) if is_spacious else _SMALL_BYTES
        )
        self._scratch = np.zeros(kernels.BLOCK, np.uint8)
        self._wide = np.zeros(kernels.BLOCK // 2, np.float32)
        cache = _cache_bytes(node.size)
        ring_bytes = min(RING_BYTES, cache // 4) if is_spacious else 0
        self._file, wanted = self._share(node, root, ring_bytes)
        self._base = np.zeros(kernels.FRAME, np.int64)
        size, base = node.size, self._file.array.ctypes.data
        self._base[kernels.SIZE], self._base[kernels.RANK] = size, node.rank
        self._base[kernels.FLAGS] = base
        self._base[kernels.COPY_BUFFERS] = base + _counter_bytes(size)
        self._base[kernels.COPY_BUFFER] = self.copy_buffer_bytes
        copy_buffers, result_buffers = rings(size, self.copy_buffer_bytes, wanted)
        self._base[kernels.COPY_BUFFER_RING], self._base[kernels.RESULT_BUFFER_RING] = (
            copy_buffers,
            result_buffers,
        )
        self._base[kernels.RESULT_BUFFERS] = self._base[kernels.COPY_BUFFERS] + size * copy_buffers
        self._base[kernels.ABORT], self._base[kernels.YIELD] = abort, _sched_yield()
        self._base[kernels.SCRATCH] = self._scratch.ctypes.data
        self._base[kernels.WIDE] = self._wide.ctypes.data
        self._base[kernels.STREAM] = STREAMING
        self._reach = reach_of(node)
        self._base[kernels.ARRAYS] = self._reach.address
        self._base[kernels.CACHE] = cache
        patience = _CROWDED if is_crowded() else _PATIENCE
        self._base[kernels.SPINS], self._base[kernels.YIELDS] = patience
        _open.add(self)

    def _share(self, node: MPI.Intracomm, root: Any, wanted: int) -> tuple[SharedFile, int]:
        """Map the file, smaller where node memory is short; give the bytes wanted."""
        while True:
            copy_buffers, result_buffers = rings(node.size, self.copy_buffer_bytes, wanted)
            counters, all_copy_buffers = _counter_bytes(node.size), node.size * copy_buffers
            own = [
                (0, counters * (node.rank == 0)),
                (counters + node.rank * copy_buffers, copy_buffers),
                (counters + all_copy_buffers + node.rank * result_buffers, result_buffers),
            ]
            try:
                nbytes = counters + all_copy_buffers + node.size * result_buffers
                return share(node, nbytes, own=own, root=root), wanted
            except Unavailable:
                if self.copy_buffer_bytes < 2 * LEAST_BYTES:
                    raise
                self.copy_buffer_bytes, wanted = self.copy_buffer_bytes // 2 // 64 * 64, wanted // 2

    def frame(
        self, combiner: Combiner | None, itemsize: int, node_root: int = 0
    ) -> NDArray[np.int64]:
        """Give the frame that a kernel reads.  Local.

        Parameters
        ----------
        combiner : Combiner or None
            The reduction, where there is one.
        itemsize : int
            Bytes of an element.
        node_root : int
            The root's rank in the node, where there is one.

        Returns
        -------
        ndarray, shape (FRAME,), dtype int64
            Not to be changed.
        """
        key = (combiner, itemsize, node_root)
        if key not in self._frames:
            self._frames[key] = self.fresh_frame(combiner, itemsize, node_root)
        return self._frames[key]

    def fresh_frame(
        self, combiner: Combiner | None, itemsize: int, node_root: int = 0
    ) -> NDArray[np.int64]:
        """Give a frame that the caller may change; as `frame` otherwise.  Local."""
        made = self._base.copy()
        made[kernels.ITEM], made[kernels.ROOT] = itemsize, node_root
        if combiner is not None:
            made[kernels.PAIR : kernels.ROOT] = combiner
        return made

    def enter(self, execution: object, step: int) -> None:
        """Queue a step; called in the order of sequence numbers.  Local."""
        with self._lock:
            self.turns.append((execution, step))
            self._queue[0] = len(self.turns)

    def leave(self) -> None:
        """Let the next step have its turn.  Local."""
        with self._lock:
            self.turns.popleft()
            self._queue[0] = len(self.turns)

    def close(self) -> None:
        """Let go of the memory.  Local; called by the world that owns it."""
        _open.discard(self)
        self.turns.clear()
        self._file.close()
        self._reach.close()


def rings(size: int, copy_buffer_bytes: int, wanted: int = 0) -> tuple[int, int]:
    """Size the rings in which a rank's copy buffers and result buffers go round.

    Parameters
    ----------
    size : int
        Ranks of the node.
    copy_buffer_bytes : int
        Bytes of a copy buffer at most.
    wanted : int
        Bytes of copy buffers that there should be.

    Returns
    -------
    copy_buffers, result_buffers : int
        Bytes.  At least room for the buffers that others may be reading, for the
        one that is being filled, and for the free rest at the end of a ring.
    """
    copy_buffer, result_buffer = copy_buffer_bytes + _PAGE, copy_buffer_bytes // size + 2 * _PAGE
    return max((kernels.COPY_BUFFERS_EACH + 1) * copy_buffer, wanted), max(
        3 * result_buffer, wanted // 2
    )


def _counter_bytes(size: int) -> int:
    """Size the counters so that the buffers start in the middle of a page.

    Long arrays start at the beginning of one.  Where source and target lie
    alike in their pages, a processor takes what it loads for what it has just
    stored.
    """
    return -(-2 * size * kernels.LINE // _PAGE) * _PAGE + _PAGE // 2


@cache
def _cache_bytes(size: int) -> int:
    """Give the bytes of level-3 cache of each rank of a node, else `NEVER`."""
    return l3_share(Path("/"), size) or NEVER


@cache
def _sched_yield() -> int:
    """Address of the C library's ``sched_yield``."""
    address = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value
    assert address is not None
    return address
