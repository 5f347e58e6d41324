"""One rank leaves by an error while the others are somewhere: ``leaving.py WHERE ERROR``.

Rank 1 says when it does.  With ``catch`` as a third word all ranks catch what they
meet, say after how long, and end in order.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.checkpoint import Checkpointer

ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("mine"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "zero": lambda: SystemExit(0),
}
WHERE, ERROR = sys.argv[1:3]
CATCHES = "catch" in sys.argv[3:]
RANK = MPI.COMM_WORLD.rank
X = np.ones(3)


def say(text: str) -> None:
    """Print a line in one piece, also where pytest keeps what is printed."""
    os.write(1, f"{text}\n".encode())


def fail() -> None:
    """Meet the error, on rank 1 alone, a moment after the others have begun to wait."""
    if RANK == 1:
        time.sleep(0.2)
        say(f"left {time.time()}")
        raise ERRORS[ERROR]()


def allreduce(comm: cr.Communicator, times: int, algorithm: str = "auto") -> None:
    """Add up some numbers, some times."""
    for _ in range(times):
        comm.Allreduce(X, np.zeros(3), algorithm=algorithm)


def _before(comm: cr.Communicator) -> None:
    fail()


def _first(comm: cr.Communicator) -> None:
    fail()
    allreduce(comm, 2)


def _trial(comm: cr.Communicator) -> None:
    allreduce(comm, 5)
    fail()
    allreduce(comm, 2)


def _settled(comm: cr.Communicator) -> None:
    allreduce(comm, 100)
    fail()
    allreduce(comm, 2)


def _library(comm: cr.Communicator) -> None:
    allreduce(comm, 10, algorithm="native")
    fail()
    allreduce(comm, 2, algorithm="native")


def _started(comm: cr.Communicator) -> None:
    comm.Iallreduce(X, np.zeros(3)).Wait()
    fail()
    request = comm.Iallreduce(X, np.zeros(3))
    while not request.Test():
        time.sleep(0.01)


def _wait(comm: cr.Communicator) -> None:
    fail()
    comm.Iallreduce(X, np.zeros(3)).wait()


def _persistent(comm: cr.Communicator) -> None:
    operation = comm.Allreduce_init(X, np.zeros(3))
    for turn in range(30):
        if turn == 20:
            fail()
        operation.start()
        operation.wait()


def _node_memory(comm: cr.Communicator) -> None:
    fail()
    comm.empty(100)


def _save(comm: cr.Communicator) -> None:
    with Checkpointer(comm, name=f"leaving-{WHERE}-{ERROR}") as checkpoints:
        checkpoints.save(1, {"x": X}).committed.wait(20)
        fail()
        checkpoints.save(2, {"x": X}).committed.wait(20)


def _sub(comm: cr.Communicator) -> None:
    child = comm.Split(0)
    allreduce(child, 3)
    fail()
    allreduce(child, 2)


def _split(comm: cr.Communicator) -> None:
    fail()
    comm.Split(0)


def _lower(comm: cr.Communicator) -> None:
    comm.allreduce(RANK)
    fail()
    comm.allreduce(RANK)


def _nested(comm: cr.Communicator) -> None:
    allreduce(comm, 3)
    with cr.init() as inner:
        allreduce(inner, 3)
        fail()
        allreduce(inner, 2)


def _ring(comm: cr.Communicator) -> None:
    allreduce(comm, 5, algorithm="ring")
    fail()
    allreduce(comm, 2, algorithm="ring")


PLACES: dict[str, Callable[[cr.Communicator], None]] = {
    "before": _before, "first": _first, "trial": _trial, "settled": _settled,
    "library": _library, "I": _started, "wait": _wait, "persistent": _persistent,
    "node": _node_memory, "save": _save, "sub": _sub, "split": _split, "lower": _lower,
    "nested": _nested, "thread": _ring, "hook": _ring, "pytest": _ring, "open": _ring,
}  # fmt: skip


def run() -> None:
    """Open a communicator, and be in that place."""
    if WHERE == "open":
        PLACES[WHERE](cr.init())
        return
    with cr.init() as comm:
        PLACES[WHERE](comm)


def caught() -> None:
    """Catch what comes, say so, and end in order."""
    began_s = time.time()
    try:
        run()
    except cr.Revoked as error:
        say(f"heard {time.time()} {error}")
    except BaseException as error:
        say(f"raised {type(error).__name__} after {time.time() - began_s:.1f} s")
        time.sleep(2)  # it lives on


def show(kind: object, error: BaseException, trace: object) -> None:
    """Stand for the program's own hook."""
    say(f"hook {RANK} {type(error).__name__}: {error}")


def test_as_by_a_user() -> None:
    run()


if __name__ == "__main__":
    if CATCHES:
        caught()
    elif WHERE == "thread":
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    elif WHERE == "pytest":
        import pytest

        unused = ("cacheprovider", "hypothesispytest", "xdist", "pytest_mpi")  # long to import
        plugins = [word for name in unused for word in ("-p", f"no:{name}")]
        shown = ["-q", "--tb=line", "--capture=sys"]
        raise SystemExit(pytest.main([*shown, "--noconftest", *plugins, __file__]))
    else:
        if WHERE == "hook":
            sys.excepthook = show
        run()
