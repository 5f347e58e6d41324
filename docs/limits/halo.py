"""Time an exchange of ghosts beside persistent requests that are written by hand.

    mpirun -n 2 python docs/limits/halo.py [changes]

128^3 doubles are cut along each axis in turn.  The hand-written ways are requests over
packed copies, and requests over subarray types.  The ways alternate; times are medians,
in us.  With "changes" every cell is changed before each exchange, as a time step does.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.partitioning import Halo, Layout, Mesh, Split

ROUNDS, CALLS, TAG = 60, 20, 7


def face(axis: int, start: int) -> tuple[slice, ...]:
    """Give the index of one layer of cells."""
    return tuple(slice(start, start + 1) if at == axis else slice(None) for at in range(3))


def layers(comm: MPI.Intracomm, array: np.ndarray, axis: int) -> tuple[int, int]:
    """Give where the layer that is sent lies, and the layer of ghosts."""
    last = array.shape[axis] - 1
    return (last - 1, last) if comm.rank == 0 else (1, 0)


def packed(comm: MPI.Intracomm, array: np.ndarray, axis: int) -> Callable[[], None]:
    """Exchange by copies."""
    source, ghost = (array[face(axis, at)] for at in layers(comm, array, axis))
    out, into = np.empty(source.shape), np.empty(ghost.shape)
    peer = 1 - comm.rank
    requests = [comm.Recv_init(into, peer, TAG), comm.Send_init(out, peer, TAG)]

    def step() -> None:
        np.copyto(out, source)
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        np.copyto(ghost, into)

    return step


def subarray(comm: MPI.Intracomm, array: np.ndarray, axis: int) -> Callable[[], None]:
    """Exchange by datatypes."""
    shape = [1 if at == axis else n for at, n in enumerate(array.shape)]
    source, ghost = (
        MPI.DOUBLE.Create_subarray(
            array.shape, shape, [at if one == axis else 0 for one in range(3)]
        ).Commit()
        for at in layers(comm, array, axis)
    )
    peer = 1 - comm.rank
    requests = [
        comm.Recv_init([array, 1, ghost], peer, TAG),
        comm.Send_init([array, 1, source], peer, TAG),
    ]

    def step() -> None:
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)

    return step


def seconds(comm: MPI.Intracomm, step: Callable[[], None], array: np.ndarray) -> float:
    """Time one way once: a row of calls, or one call after a change of all cells."""
    if "changes" in sys.argv:
        array += 1
    else:
        step()
    calls = 1 if "changes" in sys.argv else CALLS
    comm.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - began) / calls


def measure(comm: MPI.Intracomm, axis: int) -> dict[str, float]:
    """Give the median of each way, in us."""
    layout = Layout((128,) * 3, [Split(axis)], mesh=Mesh({"x": 2}))
    with Halo(comm, layout, [int(at == axis) for at in range(3)]) as halo:
        arrays = [halo.empty() for _ in range(3)]
        steps = (
            packed(comm, arrays[0], axis),
            subarray(comm, arrays[1], axis),
            lambda: halo.exchange(arrays[2]),
        )
        rows = [
            [seconds(comm, *one) for one in zip(steps, arrays, strict=True)] for _ in range(ROUNDS)
        ]
    medians = [1e6 * statistics.median(column) for column in zip(*rows, strict=True)]
    return dict(zip(("packed", "subarray", "halo"), medians, strict=True))


def main() -> None:
    """Print a line an axis."""
    with cr.init() as comm:
        for axis in range(3):
            found = measure(comm, axis)
            ratio = found["halo"] / min(found["packed"], found["subarray"])
            if comm.rank == 0:
                times = ", ".join(f"{name} {one:.1f}" for name, one in found.items())
                sys.stdout.write(f"axis {axis}: {times}; halo / better {ratio:.2f}\n")


main()
