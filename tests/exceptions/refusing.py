"""One rank refuses a call, or all do: ``refusing.py HOW WHERE``.

HOW: "alone", by rank 1, and all catch what they meet; "uncaught", the same, and nobody
does; "all" refuse and go on.  WHERE: how many calls before, by which way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.sparse import Route, allgather_chunks

HOW, WHERE = sys.argv[1:3]
RANK = MPI.COMM_WORLD.rank
X = np.ones(4)


def say(text: str) -> None:
    """Print a line in one piece."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _blocking(comm: cr.Communicator, right: bool) -> None:
    comm.Allreduce(X, np.zeros(4 if right else 3))


def _root(comm: cr.Communicator, right: bool) -> None:
    comm.Bcast(X.copy(), 0 if right else 77)


def _started(comm: cr.Communicator, right: bool) -> None:
    comm.Iallreduce(X, np.zeros(4 if right else 3)).Wait()


def _made(comm: cr.Communicator, right: bool) -> None:
    operation = comm.Allreduce_init(X, np.zeros(4 if right else 3))
    operation.start()
    operation.wait()


def _lower(comm: cr.Communicator, right: bool) -> None:
    comm.allgather(RANK if right else (lambda: RANK))  # which cannot be pickled


def _library(comm: cr.Communicator, right: bool) -> None:
    comm.Allreduce(X, np.zeros(4 if right else 3), algorithm="native")


def _route(comm: cr.Communicator, right: bool) -> None:
    route = Route(comm, [[0], [2]])
    route.dispatch(np.zeros((2 if right else 3, 4)))


def _chunks(comm: cr.Communicator, right: bool) -> None:
    chunks = {RANK: X} if right else {}
    allgather_chunks(comm, chunks, np.arange(3), np.ones((3, 3), np.bool_))


WAYS: dict[str, Callable[[cr.Communicator, bool], None]] = {
    "blocking": _blocking, "settled": _blocking, "child": _blocking, "root": _root,
    "I": _started, "init": _made, "lower": _lower, "library": _library,
    "route": _route, "chunks": _chunks,
}  # fmt: skip


def run(way: Callable[[cr.Communicator, bool], None]) -> None:
    """Make some calls, a wrong one, and some more."""
    with cr.init() as world:
        comm = world.Split(0) if WHERE == "child" else world
        for _ in range(100 if WHERE in ("settled", "library") else 3):
            way(comm, True)
        world.Barrier()
        if HOW == "all":
            for _ in range(3):
                try:
                    way(comm, False)
                except Exception as error:
                    say(f"refused {type(error).__name__}")
                way(comm, True)
            time.sleep(0.8)  # nobody may hear of anything
            way(comm, True)
            return
        if RANK == 1:
            time.sleep(0.1)
            say(f"left {time.time()}")
        if HOW == "uncaught":
            way(comm, RANK != 1)
            way(comm, True)
            return
        try:
            way(comm, RANK != 1)
        except cr.Revoked:
            raise
        except Exception as error:
            say(f"refused {type(error).__name__}")
        time.sleep(0.9 if RANK == 1 else 0)  # it lives on, and hears in its next call
        way(comm, True)


if __name__ == "__main__":
    try:
        run(WAYS[WHERE])
        say(f"done {RANK}")
    except cr.Revoked as error:
        say(f"heard {time.time()} {RANK} {error}")
        if HOW == "uncaught":
            raise
