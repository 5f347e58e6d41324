"""A new process joins all but one of the others at first."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from unittest import mock

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.faults import respawn

WATCHDOG_S = 50


def main() -> None:
    """Step; say at the end who is there."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="replace")
    merge, merges = respawn._merged, [int(comm.joined or comm.seat != int(sys.argv[1]))]

    def merged(
        joint: MPI.Intercomm, bridge: MPI.Intracomm | None, *, is_new: bool
    ) -> MPI.Intracomm:
        made = merge(joint, bridge, is_new=is_new)
        merges[0] += joint.size > 1  # not the bridge of the leader
        if joint.size > 1 and merges[0] == 1:
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        return made

    given, taken, step = np.ones(1000), np.zeros(1000), 0
    with mock.patch.object(respawn, "_merged", merged):
        while step < 20:
            for attempt in comm.attempts():
                with attempt:
                    step = comm.allreduce(step, MPI.MAX)
                    if (comm.seat, step, comm.incarnation(2)) == (2, 10, 0):
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Allreduce(given, taken)
            step += 1
            assert taken[0] == comm.size
    print(f"seat {comm.seat} of {comm.size}, {comm.incarnation(2)} newcomers", flush=True)  # noqa: T201 - what the test reads
    comm.close()


main()
