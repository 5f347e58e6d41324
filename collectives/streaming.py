"""Whether copies into node memory go past the caches: measured, not guessed.

Where cores share their last cache, what one wrote the other reads from its
cache; where they do not, it comes slowly from there, and had better be in
memory.  Neither the kernel nor MPI tells which it is.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from closeranks.collectives.combiners import combiner_of
from closeranks.collectives.node_memory import NEVER, STREAMING, NodeMemory
from closeranks.collectives.node_words import STREAM
from closeranks.collectives.shared_run import kernel_for
from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from mpi4py import MPI

#: Bytes of the vector, calls of each kind, the first of which do not count, and by
#: how much streaming must win.
NBYTES, CALLS, WARM, CLEAR = 64 * 1024, 20, 5, 0.8


def settle_streaming(memory: NodeMemory, node: MPI.Intracomm) -> bool:
    """Measure a few all-reduces both ways and keep the faster one.

    Collective over ``node``; under a millisecond where every rank has a core.

    Parameters
    ----------
    memory : NodeMemory
        Just made.
    node : MPI.Intracomm
        Its ranks.

    Returns
    -------
    bool
        Whether copies go past the caches; the same on all ranks.
    """
    from mpi4py import MPI

    typical = np.array(_typical_s(memory, node))
    node.Allreduce(MPI.IN_PLACE, typical, op=MPI.MAX)
    streams = bool(typical[1] < CLEAR * typical[0])
    memory.stream(from_bytes=STREAMING if streams else NEVER)
    return streams


def _typical_s(memory: NodeMemory, node: MPI.Intracomm) -> list[float]:
    """Median time of an all-reduce whose copies never, or always, stream."""
    kernel = kernel_for("allreduce", NBYTES)
    combiner = combiner_of("SUM", np.dtype(np.float32))
    frames = [memory.fresh_frame(combiner, 4) for _ in range(2)]
    for frame, limit in zip(frames, (NEVER, STREAMING), strict=True):
        frame[STREAM] = limit
    source, target = np.zeros(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)
    state, given, into = (one.ctypes.data for one in (memory.state, source, target))
    taken: list[list[float]] = [[], []]
    for _ in range(CALLS):
        for frame, samples in zip(frames, taken, strict=True):
            node.Barrier()
            started = time.perf_counter()
            wait(partial(kernel, frame.ctypes.data, state, given, into, NBYTES))
            samples.append(time.perf_counter() - started)
    return [float(np.median(samples[WARM:])) for samples in taken]
