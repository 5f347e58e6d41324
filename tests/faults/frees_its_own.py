"""A program that frees its own communicator after a death: nobody gets what the dead has sent.

    closeranks run --faults -n 8 -- tests/faults/frees_its_own.py KIND END

KIND is "grid" or "group", END the method that frees it.  Rank 3 sends 666 to rank 0 there
and is killed, while rank 0's kernel drops what comes from it, as a network may; it is sent
again.  After the recovery all free what they have and make another one, where another rank
3 sends 1.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI

import closeranks as cr

#: Options of Linux's sockets that Python has no names for, and a filter that drops all.
ATTACH, DETACH = 26, 27
DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
TAG, LATE_S, WATCHDOG_S = 7, 3.0, 50


def connections() -> dict[tuple[object, object], socket.socket]:
    """Give the TCP connections of this process, by their two addresses."""
    found: dict[tuple[object, object], socket.socket] = {}
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            one = socket.socket(fileno=os.dup(int(entry.name)))
            if one.family == socket.AF_INET:
                found[one.getsockname(), one.getpeername()] = one
    return found


def deaf(comm: cr.Communicator) -> socket.socket | None:
    """Let rank 0 hear nothing of rank 3 from now on; gives what they are connected by."""
    taken, shared = np.empty(1), None
    for other in range(comm.size):  # all are connected
        comm.Sendrecv(np.ones(1), other, 0, taken, other, 0)
    comm.Barrier()  # the next ones go by memory
    if comm.rank == 3:
        comm.send(list(connections()), 0)
    if comm.rank == 0:
        its = comm.recv(source=3)
        shared = next(one for (here, there), one in connections().items() if (there, here) in its)
        shared.setsockopt(socket.SOL_SOCKET, ATTACH, struct.pack("HL", 1, ctypes.addressof(DROP)))
    comm.Barrier()
    return shared


def made_of(comm: cr.Communicator, kind: str) -> MPI.Intracomm:
    """Make what no recovery makes again."""
    return comm.Create_cart([comm.size]) if kind == "grid" else comm.Create(comm.Get_group())


def lose_rank_3(comm: cr.Communicator, own: MPI.Intracomm) -> None:
    """Send what comes late, and die; the others hear of it on the communicator."""
    if own.rank == 3:
        time.sleep(0.1)  # the others have ended the call before
        own.Send(np.full(1, 666.0), 0, TAG)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()


def listen() -> None:
    """Let the library take what comes."""
    end = time.monotonic() + LATE_S
    while time.monotonic() < end:
        MPI.COMM_SELF.Iprobe()


def sent_by_3(comm: MPI.Intracomm) -> float:
    """Receive 1 from rank 3, on rank 0."""
    taken = np.ones(1)
    if comm.rank == 3:
        comm.Send(taken, 0, TAG)
    elif comm.rank == 0:
        comm.Recv(taken, 3, TAG)
    return float(taken[0])


def main() -> None:
    """Lose rank 3, and look at what comes of its message."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    kind, end = sys.argv[1:]
    with cr.init(on_failure="shrink") as comm:
        own = made_of(comm, kind)
        shared = deaf(comm)
        for attempt in comm.attempts():
            with attempt:
                if comm.epoch == 0:
                    lose_rank_3(comm, own)
                getattr(own, end)()
                assert own == MPI.COMM_NULL
                own = made_of(comm, kind)
                if shared is not None:
                    shared.setsockopt(socket.SOL_SOCKET, DETACH, 0)
                listen()
                comm.Barrier()
                received = sent_by_3(own)
        own.Free()
        if comm.rank == 0:
            print(f"sent 1, received {received:g}", flush=True)  # noqa: T201


main()
