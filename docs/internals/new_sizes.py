"""What an all-reduce of a size never seen costs, beside one of the same size again.

    closeranks run -n 2 -- docs/internals/new_sizes.py
    closeranks run -n 4 -- docs/internals/new_sizes.py recursive_doubling
    closeranks run -n 2 -- docs/internals/new_sizes.py ring memory

Blocks of calls of one size and of calls of new sizes take turns in one process.  The new sizes lie
evenly around that size.  Rank 0 prints the medians.  With ``memory`` it prints instead by how much
the process grows in 100 000 calls of sizes that all differ, after the first tenth of them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import closeranks
from closeranks.collectives.communicator.communicator import Communicator

#: Calls of a block, and blocks of either kind.
CALLS, BLOCKS = 40, 20
#: Floats of the calls of one size; twice that are one eager message of Open MPI within a node.
COUNT = 500
#: Different sizes of the measurement of memory.
SIZES = 100_000

Floats = NDArray[np.float32]


def times_us(comm: Communicator, algorithm: str, counts: list[int], given: Floats) -> list[float]:
    """Time one call of each count.  Collective."""
    taken, found = np.empty_like(given), []
    for count in counts:
        source, target = given[:count], taken[:count]
        began = time.perf_counter()
        comm.Allreduce(source, target, algorithm=algorithm)
        found.append((time.perf_counter() - began) * 1e6)
    return found


def compare(comm: Communicator, algorithm: str) -> tuple[float, float]:
    """Measure the medians of known and of new sizes, in microseconds.  Collective."""
    given = np.ones(2 * COUNT, np.float32)
    order = np.random.default_rng(0).permutation(CALLS * BLOCKS) - CALLS * BLOCKS // 2
    counts = [COUNT + int(gap) for gap in order if gap]
    times_us(comm, algorithm, [COUNT] * 200, given)
    known, new = [], []
    for first in range(0, len(counts), CALLS):
        known += times_us(comm, algorithm, [COUNT] * CALLS, given)
        new += times_us(comm, algorithm, counts[first : first + CALLS], given)
    return float(np.median(known)), float(np.median(new))


def resident_bytes() -> int:
    """Give the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def growth_bytes(comm: Communicator, algorithm: str) -> int:
    """Measure by how much calls of new sizes make the process grow.  Collective."""
    given, taken = np.ones(SIZES, np.float32), np.empty(SIZES, np.float32)
    order, before = np.random.default_rng(0).permutation(SIZES), 0
    for number, count in enumerate(order.tolist()):
        if number == SIZES // 10:
            before = resident_bytes()
        comm.Allreduce(given[:count], taken[:count], algorithm=algorithm)
    return resident_bytes() - before


def main() -> None:
    """Print the figures of rank 0."""
    words = [word for word in sys.argv[1:] if word != "memory"]
    algorithm = words[0] if words else "ring"
    comm = closeranks.init(MPI.COMM_WORLD)
    if "memory" in sys.argv:
        said = f"{growth_bytes(comm, algorithm) >> 10} KiB more after {SIZES} sizes"
    else:
        known, new = compare(comm, algorithm)
        said = f"known size {known:.1f} us, new size {new:.1f} us, ratio {new / known:.2f}"
    if comm.rank == 0:
        print(f"{algorithm}, {comm.size} ranks: {said}", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
