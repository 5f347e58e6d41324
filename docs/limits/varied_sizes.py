"""All-reduces of sizes drawn at random over a slow wire: ours, the library's, and the wire.

    closeranks lab --nodes 4 --per-node 2 --rate 200mbit -- docs/limits/varied_sizes.py

Sizes are drawn between 64 KiB and 4 MiB, each factor of two as likely as any other.  Every size
is summed by us and by mpi4py's method on a duplicate, in turn, who is first changing.  Rank 0
prints a line for each size class: medians of the slowest rank in ms, and their ratio.  The last
line compares the sum of our times with what the network cards need at least, at 0.957 of
their rate.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from statistics import median

import numpy as np
from mpi4py import MPI

import closeranks
from closeranks.collectives.arguments.call_key import size_class

#: Bytes of a payload in those of a full TCP frame.
PAYLOAD = 0.957
LOW, HIGH = 1 << 16, 1 << 22


def timed(comm: MPI.Intracomm, x: np.ndarray, y: np.ndarray, plain: MPI.Intracomm) -> float:
    """Time one all-reduce on the slowest rank, in seconds."""
    plain.Barrier()
    began = time.perf_counter()
    comm.Allreduce(x, y)
    return plain.allreduce(time.perf_counter() - began, MPI.MAX)


def main() -> None:
    """Draw sizes, and time both sides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=200e6, help="bits a second of a node")
    given = parser.parse_args()
    plain = MPI.COMM_WORLD.Dup()
    rng = np.random.default_rng(given.seed)
    sizes = np.exp(rng.uniform(math.log(LOW), math.log(HIGH), given.calls)).astype(int) // 4 * 4
    found: dict[int, list[tuple[float, float]]] = {}
    with closeranks.init() as comm:
        nodes = plain.allreduce(1 / plain.Split_type(MPI.COMM_TYPE_SHARED).size)
        ours_s = wire_s = 0.0
        for number, nbytes in enumerate(sizes.tolist()):
            x = (np.arange(nbytes // 4) % 13 + comm.rank).astype(np.float32)
            y, z = np.empty_like(x), np.empty_like(x)
            if number % 2:
                native = timed(plain, x, z, plain)
                ours = timed(comm, x, y, plain)
            else:
                ours = timed(comm, x, y, plain)
                native = timed(plain, x, z, plain)
            assert (y == z).all()
            found.setdefault(size_class(nbytes), []).append((ours, native))
            ours_s += ours
            wire_s += 2 * (nodes - 1) / nodes * nbytes * 8 / (PAYLOAD * given.rate)
        lines = [line(known, pairs) for known, pairs in sorted(found.items())]
        lines.append(f"all: ours {ours_s:.2f} s, wire {wire_s:.2f} s: {wire_s / ours_s:.0%}")
        if comm.rank == 0:
            sys.stdout.write("\n".join(lines) + "\n")


def line(known: int, pairs: list[tuple[float, float]]) -> str:
    """Write the line of a size class."""
    ours, native = (median(pair[side] for pair in pairs) * 1e3 for side in (0, 1))
    return (
        f"below {1 << known:8d} B: {len(pairs):3d} calls  ours {ours:7.1f} ms  "
        f"native {native:7.1f} ms  ratio {ours / native:.2f}"
    )


if __name__ == "__main__":
    main()
