"""A rank dies, and the program says where the ranks sit: on two sites.

    closeranks run --faults -n 4 [--spares 1] -- tests/faults/two_sites.py

Each rank says where it takes all to sit.
"""

from __future__ import annotations

import faulthandler
import os
import signal

import closeranks as cr

WATCHDOG_S = 50


def main() -> None:
    """Lose seat 1, and say who sits where."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    topology = cr.Topology.regular(site=2, rank=2)
    with cr.init(on_failure="replace", topology=topology) as comm:
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 1 and not comm.joined:
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.allreduce(1)
        place = comm.hierarchy.levels, comm.hierarchy.groups.tolist()
        print("seat", comm.seat, comm.joined, *place, flush=True)  # noqa: T201 - what the test reads


main()
