"""Short calls where ranks share a core: ours against mpi4py's own.

    taskset -c 0 closeranks run -n 2 -- docs/internals/short_of_cores.py
    taskset -c 0 closeranks run -n 4 -- docs/internals/short_of_cores.py --blocks 15

Each call is made so often first that its choice is settled.  Then blocks of our call, of
mpi4py's on a duplicate of the communicator, and of mpi4py's on another duplicate take turns.
Rank 0 prints a line for each call: the medians of the blocks in us a call, of the slowest rank,
and two ratios.  The second one compares mpi4py with itself: that far from 1 a ratio means
nothing.  The last columns say the same of the processor time of all ranks together, which other
programs on the same core change little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import closeranks

#: Seconds that a block takes, about.
BLOCK_S = 0.02
#: Calls, and bytes of their arrays.
CALLS = (
    ("Barrier", 0), ("Allreduce", 8), ("Allreduce", 4096), ("Iallreduce", 8), ("Iallreduce", 4096),
)  # fmt: skip


class Times(NamedTuple):
    """Microseconds a call: on the clock of the slowest rank, and of all ranks' processors."""

    clock: float
    processor: float


def call_of(comm: MPI.Intracomm, method: str, nbytes: int) -> Callable[[], Any]:
    """Give one call, waited for."""
    if method == "Barrier":
        return lambda: comm.Barrier()  # the method of now: a shortcut takes its place
    x, y = np.ones(nbytes // 8), np.zeros(nbytes // 8)
    if method == "Allreduce":
        return lambda: comm.Allreduce(x, y)
    return lambda: comm.Iallreduce(x, y).Wait()


def timed(call: Callable[[], Any], calls: int, plain: MPI.Intracomm) -> Times:
    """Time a block of calls; the same on every rank."""
    plain.Barrier()
    began, spent = time.perf_counter(), time.process_time()
    for _ in range(calls):
        call()
    mine = time.perf_counter() - began, time.process_time() - spent
    clock, processor = plain.allreduce(mine[0], MPI.MAX), plain.allreduce(mine[1], MPI.SUM)
    return Times(clock / calls * 1e6, processor / calls * 1e6)


def typical(blocks: list[Times]) -> Times:
    """Give the median of each time."""
    return Times(*(median(column) for column in zip(*blocks, strict=True)))


def main() -> None:
    """Time all calls."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--settle", type=int, default=3000, help="calls before the first block")
    wanted = parser.parse_args()
    comm = closeranks.init()
    plains = [MPI.COMM_WORLD.Dup() for _ in range(2)]
    for method, nbytes in CALLS:
        ours = call_of(comm, method, nbytes)
        sides = [ours, *(call_of(plain, method, nbytes) for plain in plains)]
        for call in sides:
            timed(call, wanted.settle if call is ours else wanted.settle // 10, plains[0])
        once = partial(timed, calls=50, plain=plains[0])
        calls = [max(20, round(BLOCK_S * 1e6 / once(call).clock)) for call in sides]
        blocks: list[list[Times]] = [[], [], []]
        for _ in range(wanted.blocks):
            for found, call, number in zip(blocks, sides, calls, strict=True):
                found.append(timed(call, number, plains[0]))
        mine, theirs, again = map(typical, blocks)
        if comm.rank == 0:
            print(
                f"{method:10} {nbytes:5} B"
                f"  ours {mine.clock:7.1f}  mpi4py {theirs.clock:7.1f}"
                f"  ratio {mine.clock / theirs.clock:5.2f}"
                f"  itself {again.clock / theirs.clock:5.2f}"
                f"  processor {mine.processor:7.1f} {theirs.processor:7.1f}"
                f"  ratio {mine.processor / theirs.processor:5.2f}"
                f"  itself {again.processor / theirs.processor:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
