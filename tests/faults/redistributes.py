"""A rank is killed amid `redistribute`; the others go on with a mesh of those left.

    closeranks run --faults -n 4 -- tests/faults/redistributes.py WAY STEP

WAY is "window" or "messages", STEP the method amid which the rank dies.  Every rank that
is left ends with "seat N: ok".
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np

import closeranks as cr
from closeranks.partitioning import Broadcast, Layout, Mesh, Partial, Split, redistribute
from closeranks.partitioning.redistribution import exchange, window_exchange
from closeranks.partitioning.redistribution.rank_work import Arrays

WATCHDOG_S = 50
GONE, OFTEN = 1, 5
SHAPE = (640, 512)


def dying(comm: cr.Communicator, step: str) -> Any:
    """Let a rank die at a later call of a step."""
    owner: Any = exchange if step == "agreed" else Arrays
    real, left = getattr(owner, step), [OFTEN]

    def called(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if comm.epoch == 0 and comm.seat == GONE and not left[0]:
            time.sleep(0.05)  # the others wait by now
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)

    return mock.patch.object(owner, step, called)


def turned(comm: cr.Communicator) -> None:
    """Bring an array through several layouts of the ranks there are."""
    mesh = Mesh({"x": comm.size})
    whole = np.arange(float(SHAPE[0] * SHAPE[1])).reshape(SHAPE)
    hows: list[Any] = [Split(0), Split(1), Broadcast(), Partial(), Split(1), Split(0)]
    layouts = [Layout(SHAPE, [how], mesh=mesh) for how in hows]
    part = whole[layouts[0].box(comm.rank)].copy()
    for source, target in pairwise(layouts):
        part = redistribute(comm, part, source, target, limit_bytes=1 << 17)
    assert (part == whole[layouts[-1].box(comm.rank)]).all()


def main(way: str, step: str) -> None:
    comm = cr.init(on_failure="shrink")
    seat = comm.seat
    shares = window_exchange.can_share if way == "window" else lambda _: False
    with dying(comm, step), mock.patch.object(window_exchange, "can_share", shares):
        for _ in range(3):
            for attempt in comm.attempts():
                with attempt:
                    turned(comm)
    assert (comm.size, comm.epoch) == (3, 1)
    print(f"seat {seat}: ok", flush=True)  # noqa: T201
    comm.close()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    main(sys.argv[1], sys.argv[2])
