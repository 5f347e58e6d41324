"""Average a model that all ranks of a node hold: arrays of comm.empty are not copied.

Run with ``closeranks run -n 2 -- examples/average_in_place.py``.

Both arrays take the same calls; only where they lie is different.
"""

import time

import numpy as np
from mpi4py import MPI

import closeranks as cr

PARAMETERS = 4 << 20  # float32: 16 MiB
CALLS = 80  # more than half of them while the best algorithm is looked for


def milliseconds(comm: cr.Communicator, model: np.ndarray) -> float:
    """Time of an average, once the algorithm is settled; the slowest rank counts."""
    times = []
    for _ in range(CALLS):
        model[:] = comm.rank  # training would be here
        comm.Barrier()
        start = time.perf_counter()
        comm.Allreduce(MPI.IN_PLACE, model, op=cr.MEAN)
        times.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))
        assert np.all(model == (comm.size - 1) / 2)
    return 1e3 * float(np.median(times[-CALLS // 4 :]))


with cr.init() as comm:
    own = milliseconds(comm, np.zeros(PARAMETERS, np.float32))
    shared = milliseconds(comm, comm.empty(PARAMETERS, np.float32))
    if comm.rank == 0:
        print(f"arrays of NumPy {own:.2f} ms, of comm.empty {shared:.2f} ms")
