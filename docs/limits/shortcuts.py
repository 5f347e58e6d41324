"""What compiled shortcuts gain over the best that Python can do.

    closeranks run -n 2 -- docs/limits/shortcuts.py [BYTES ...]

Settled all-reduces take turns in one process: by the compiled shortcut, by a Python function
that looks at all that a right answer depends on and then runs the same kernel, and by mpi4py on
a plain communicator.  Rank 0 prints medians in us, and the kernel called with ready addresses.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import closeranks
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.collectives.engine.leaves import kernel_for
from closeranks.collectives.fastpath import shortcut_layout as code
from closeranks.collectives.fastpath.shm_call import ShmCall

SIZES = [8, 512, 4096, 16384, 65536]
BLOCKS, CALLS = 21, 500

Array = np.ndarray


def seconds(call: Callable[[], object]) -> float:
    """Time a call, many times in a row."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS


def near_of(comm: Communicator, given: Array, taken: Array) -> ShmCall:
    """Give the kernel that serves a settled call, which this makes settled."""
    for _ in range(200):
        comm.Allreduce(given, taken, algorithm="shared")
    return next(iter(comm._service._asked._known.values()))


def python_way(near: ShmCall, given: Array) -> Callable[..., None]:
    """Serve known calls as well as Python can."""
    known = {(given.dtype, given.nbytes, id(MPI.SUM)): near}
    ndarray, turns, total = np.ndarray, near._world.node_memory.turns, MPI.SUM

    def allreduce(sendbuf: Array, recvbuf: Array, op: MPI.Op = total) -> None:
        if type(sendbuf) is ndarray and type(recvbuf) is ndarray and not turns:
            dtype, nbytes = sendbuf.dtype, sendbuf.nbytes
            found = known.get((dtype, nbytes, id(op)))
            if found is not None and recvbuf.dtype is dtype and recvbuf.nbytes == nbytes:
                first, second = sendbuf.__array_interface__, recvbuf.__array_interface__
                (given, _), (taken, fixed) = first["data"], second["data"]
                apart = given + nbytes <= taken or taken + nbytes <= given
                side_by_side = first["strides"] is None and second["strides"] is None
                if apart and side_by_side and not fixed:
                    found._world.sequence()
                    found._wait(given, taken, nbytes)
                    return
        raise NotImplementedError

    return allreduce


def bare(near: ShmCall, given: Array, taken: Array) -> Callable[[], object]:
    """Run the kernel with ready addresses."""
    frame, state = (int(near._entry[at]) for at in (code.E_FRAME, code.E_STATE))
    arguments = frame, state, given.ctypes.data, taken.ctypes.data, given.nbytes
    kernel, sequence = kernel_for("allreduce", given.nbytes), near._world.sequence

    def run() -> None:
        sequence()
        while not kernel(*arguments):
            pass

    return run


def measure(size: int, plain: MPI.Intracomm) -> dict[str, float]:
    """Give medians in us."""
    given = np.ones(size // 8)
    taken = np.empty_like(given)
    with closeranks.init(plain) as comm:
        near = near_of(comm, given, taken)
        python = python_way(near, given)
        ways: dict[str, Callable[[], object]] = {
            "python": lambda: python(given, taken),
            "kernel": bare(near, given, taken),
            "mpi4py": lambda: plain.Allreduce(given, taken),
        }
        for _ in range(3000):
            comm.Allreduce(given, taken)  # until it is settled
        ways["compiled"] = lambda: comm.Allreduce(given, taken)
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(BLOCKS):
            for name, way in ways.items():
                plain.Barrier()
                found[name].append(seconds(way) * 1e6)
    return {name: float(np.median(times)) for name, times in found.items()}


def main() -> None:
    """Print a line a size."""
    plain = MPI.COMM_WORLD
    for size in [int(text) for text in sys.argv[1:]] or SIZES:
        medians = measure(size, plain)
        if plain.rank == 0:
            said = ", ".join(f"{name} {us:.2f}" for name, us in medians.items())
            sys.stdout.write(f"{size:6d} B: {said} us\n")


if __name__ == "__main__":
    main()
