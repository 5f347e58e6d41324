"""The program of ``closeranks bench init``: times its start, then goes on.

Imports nothing at its top but what Python has imported itself.
"""

from __future__ import annotations

import runpy
import sys
import time


def main() -> None:
    """Start MPI and the package as a program does, then run the command line."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    began = time.perf_counter()
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    mpi_init_s = time.perf_counter() - began
    laps, wrong = _start()

    from closeranks.jobs.bench.benches.init_time import take

    take({"mpi_init_s": mpi_init_s, **laps}, wrong)
    runpy.run_module("closeranks", run_name="__main__")


def _start() -> tuple[dict[str, float], int]:
    """Import, open, call; returns the seconds of each part and what is wrong."""
    stamps = [time.perf_counter()]
    import numpy as np

    from closeranks.collectives.communicator.initialization import init
    from closeranks.comms.jit.code_cache import spent_s

    spent = [0.0, spent_s()]
    stamps.append(time.perf_counter())

    def lap() -> None:
        stamps.append(time.perf_counter())
        spent.append(spent_s())

    comm = init()
    lap()
    few = np.ones(4, np.float32)
    little = np.empty_like(few)
    comm.Allreduce(few, little)
    lap()
    many = np.ones(1 << 22, np.float32)
    much = np.empty_like(many)
    comm.Allreduce(many, much)
    lap()
    wrong = sum(int(np.count_nonzero(got != comm.Get_size())) for got in (little, much))
    comm.close()
    names = ("import_s", "open_s", "small_s", "large_s")
    both = zip(names, np.diff(stamps), np.diff(spent), strict=True)
    laps = {name: float(took - loaded) for name, took, loaded in both}
    return {**laps, "load_s": spent[-1]}, wrong


if __name__ == "__main__":
    sys.argv[0] = "closeranks"
    main()
