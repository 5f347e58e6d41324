"""What an attempt costs where nobody fails.

    closeranks run --faults -n 2 -- docs/limits/attempts.py [BYTES ...]

All-reduces outside and inside of an attempt take turns in one process.  Rank 0 prints, for
each size, how many times as long those inside take, and how long an empty attempt does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import closeranks
from closeranks.collectives.communicator.communicator import Communicator

SIZES = [8, 512, 4096, 8192, 65536, 1 << 20, 4 << 20]
BLOCKS, BLOCK_BYTES = 21, 20_000_000
#: What a call costs beside its bytes, for blocks that take about as long.
CALL_BYTES = 50_000


def seconds(call: Callable[[], object], count: int) -> float:
    """Time a call, many times in a row."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def both(comm: Communicator, size: int) -> tuple[float, float]:
    """Return how many times as long calls take inside of attempts, and the seconds outside.

    Each block is compared with the one before it: machines change their speed meanwhile.
    """
    given = np.ones(size // 8)
    taken = np.empty_like(given)
    count = max(20, min(400, BLOCK_BYTES // (size + CALL_BYTES)))
    inside, outside = list[float](), list[float]()

    def call() -> None:
        comm.Allreduce(given, taken)

    seconds(call, 200)
    for _ in range(BLOCKS):
        outside.append(seconds(call, count))
        for attempt in comm.attempts():
            with attempt:
                call()
                once = seconds(call, count)
        inside.append(once)
    ratios = np.divide(inside, outside)
    return float(np.median(ratios)), float(np.median(outside))


def empty(comm: Communicator) -> None:
    """Begin an attempt and end it."""
    for attempt in comm.attempts():
        with attempt:
            pass


def main() -> None:
    """Measure each size."""
    with closeranks.init(on_failure="shrink") as comm:
        for size in [int(word) for word in sys.argv[1:]] or SIZES:
            ratio, outside = both(comm, size)
            if comm.rank == 0:
                more = f"{ratio:.3f} times, {1e6 * (ratio - 1) * outside:+.3f} us"
                print(f"{size} B: {more} of {1e6 * outside:.2f}", flush=True)  # noqa: T201
        took = float(np.median([seconds(lambda: empty(comm), 20) for _ in range(BLOCKS)]))
        if comm.rank == 0:
            print(f"an empty attempt: {1e6 * took:.1f} us")  # noqa: T201


main()
