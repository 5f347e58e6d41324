"""What else ends a job, or does not: ``beyond.py long|loop``.

"long": seat 2 computes for longer than any silence is borne.  "loop": all go on
until somebody ends them.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import closeranks as cr


def main(case: str) -> None:
    """Meet it in the tenth step."""
    with cr.init(on_failure="shrink") as comm:
        given, total = np.full(5000, 1 << comm.seat), np.empty(5000, int)
        step = 0
        while case == "loop" or step < 20:
            for attempt in comm.attempts():
                with attempt:
                    if step == 10 and case == "long" and comm.seat == 2:
                        _compute(2.0)
                    comm.Allreduce(given, total)
            assert (total == sum(1 << seat for seat in comm.alive)).all()
            step += 1
            if step == 10 and comm.rank == 0:
                sys.stdout.write("ten steps\n")
                sys.stdout.flush()
        if comm.rank == 0:
            sys.stdout.write(f"{comm.size} ranks, epoch {comm.epoch}\n")


def _compute(seconds: float) -> None:
    """Keep the core and Python's lock."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        sum(range(10_000))


if __name__ == "__main__":
    main(sys.argv[1])
