"""What the number of a communicator that was freed gets, without this package.

    closeranks run --faults -n 8 -- docs/limits/freed.py killed [free]
    closeranks run --faults -n 8 -- docs/limits/freed.py broken [free]

Rank 3 sends to rank 0 what comes late.  "killed": it is killed while rank 0's kernel drops
what comes from it, as a network may; it is sent again.  "broken": its connection with rank 1
breaks, so that it is taken for dead, but it computes on, and sends when it is through.  The
others revoke and shrink; with `free` they free what was revoked.  Then they duplicate what
they have.  Rank 3 of the duplicate, another one, sends 1; rank 0 prints what it receives.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np
from mpi4py import MPI

#: Options of Linux's sockets that Python has no names for, and a filter that drops all.
ATTACH, DETACH = 26, 27
DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
#: Seconds until something happens to rank 3, and in which it computes on.
READY_S, COMPUTES_S = 0.3, 2.0

Ends: TypeAlias = tuple[object, object]


def connections() -> dict[Ends, socket.socket]:
    """Give the TCP connections of this process, by their two addresses."""
    found: dict[Ends, socket.socket] = {}
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            one = socket.socket(fileno=os.dup(int(entry.name)))
            if one.family == socket.AF_INET:
                found[one.getsockname(), one.getpeername()] = one
    return found


def with_rank_3(whole: MPI.Intracomm, rank: int) -> socket.socket | None:
    """Give one rank its connection with rank 3; collective."""
    if whole.rank == 3:
        whole.send(list(connections()), rank)
    if whole.rank != rank:
        return None
    its = whole.recv(source=3)
    return next(one for (here, there), one in connections().items() if (there, here) in its)


def send_late(old: MPI.Intracomm, seconds: float) -> NoReturn:
    """Be rank 3."""
    time.sleep(seconds)
    old.Send(np.full(1, 666.0), 0, 7)
    time.sleep(seconds - READY_S)  # killed at once, or when the others are through
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def listen(seconds: float) -> None:
    """Let the library take what comes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        MPI.COMM_SELF.Iprobe()


def main() -> None:
    """Lose rank 3, and look at what comes of its message."""
    is_killed = sys.argv[1] == "killed"
    whole, taken = MPI.COMM_WORLD.Dup(), np.empty(1)
    whole.Set_errhandler(MPI.ERRORS_RETURN)
    for other in range(whole.size):  # all are connected
        whole.Sendrecv(np.ones(1), other, 0, taken, other, 0)
    old = whole.Dup()
    shared = with_rank_3(whole, 0 if is_killed else 1)
    whole.Barrier()
    if whole.rank == 3:
        send_late(old, READY_S if is_killed else COMPUTES_S)
    if shared and is_killed:
        shared.setsockopt(socket.SOL_SOCKET, ATTACH, struct.pack("HL", 1, ctypes.addressof(DROP)))
    elif shared:
        time.sleep(READY_S)
        shared.shutdown(socket.SHUT_RDWR)
        shared.close()
    with suppress(MPI.Exception):
        whole.Barrier()  # rank 3 does not come
    old.Revoke()
    whole.Revoke()
    left = whole.Shrink()
    if "free" in sys.argv:
        old.Free()
        whole.Free()
    new = left.Dup()
    if shared and is_killed:
        shared.setsockopt(socket.SOL_SOCKET, DETACH, 0)
    listen(COMPUTES_S + 1)
    left.Barrier()
    if new.rank == 3:
        new.Send(np.ones(1), 0, 7)
    elif new.rank == 0:
        new.Recv(taken, 3, 7)
        print(f"sent 1, received {taken[0]:g}", flush=True)  # noqa: T201
    left.Barrier()


if sys.argv[1:2] not in (["killed"], ["broken"]):
    sys.exit("what is to happen to rank 3: killed or broken?")
main()
