"""A program whose ranks exchange ghosts, and that loses one of them in an exchange.

    closeranks run --faults -n 4 -- tests/faults/halo_dies.py WHEN

WHEN says where seat 1 is killed: "before" its exchange, "within" it, or within a
"reduce".  The survivors go on with another mesh.  The halo of the first world is
refused, and closed.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import Any

import numpy as np

import closeranks as cr
from closeranks.partitioning import Halo, Layout, Mesh, Split

LENGTH, WATCHDOG_S = 24_000, 50


def made(comm: cr.Communicator) -> Halo:
    """Make a halo of the ranks that are there."""
    mesh = Mesh({"x": comm.size})
    return Halo(comm, Layout((LENGTH, 3), [Split(0)], mesh=mesh), [300, 0], periodic=True)


def exchange(comm: cr.Communicator, halo: Halo, when: str) -> None:
    """Fill ghosts, compare them, and add them to their owners."""
    array = halo.empty()
    start, stop = halo.layout.bounds_of(comm.rank)[0]
    halo.interior(array)[...] = np.arange(start, stop)[:, None]
    doomed = comm.seat == 1 and comm.epoch == 0
    if doomed and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    halo.start(array)
    if doomed and when == "within":
        os.kill(os.getpid(), signal.SIGKILL)
    halo.finish()
    assert (array == np.arange(start - 300, stop + 300)[:, None] % LENGTH).all()
    if doomed and when == "reduce":
        traffic: Any = halo._traffic
        traffic.start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    before = array.copy()
    halo.reduce(array)
    near = np.r_[300:600, -600:-300]
    assert (array[near] == 2 * before[near]).all()


def refused(halo: Halo) -> bool:
    """Tell whether a halo of an earlier world says so."""
    try:
        halo.exchange(halo.empty())
    except cr.Revoked as error:
        return error.for_good and "recovery" in str(error)
    return False


def main() -> None:
    """Lose a rank, and go on."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    with cr.init(on_failure="shrink") as comm:
        first, halo, epoch = made(comm), made(comm), comm.epoch
        exchange(comm, first, "never")
        comm.Barrier()  # nobody dies while another rank is in there still
        for _ in range(3):
            for attempt in comm.attempts():
                with attempt:
                    if epoch != comm.epoch:
                        assert refused(halo)
                        halo.close()
                        halo, epoch = made(comm), comm.epoch
                    exchange(comm, halo, sys.argv[1])
        first.close()
        halo.close()
        seats = ", ".join(map(str, comm.alive))
        sys.stdout.write(f"seat {comm.seat}: of {seats}\n")


main()
