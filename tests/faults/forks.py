"""Children that rank 1 forks leave its communicator in every way; it is not theirs.

    closeranks run --faults -n 3 -- tests/faults/forks.py

Every rank prints what all have summed up afterwards, and rank 1 how its children ended:
with 0 where every call of all that it had was refused.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import closeranks as cr
from closeranks.comms.mpi.mpi_lock import TURN

WATCHDOG_S = 60


def fails(comm: cr.Communicator) -> None:
    """Raise what nobody catches."""
    raise RuntimeError(f"rank {comm.rank} has forked this one")


def exits(comm: cr.Communicator) -> None:
    """Leave by an exit."""
    sys.exit(comm.size)


def forsakes(comm: cr.Communicator) -> None:
    """Leave one that was derived, and the first one."""
    with child:
        fails(comm)


def closes(comm: cr.Communicator) -> None:
    """Close both, and give up."""
    child.close()
    keeper.close()
    comm.close()
    comm.abandon()
    os._exit(0)


def calls(comm: cr.Communicator) -> None:
    """Call all that there is, which must be refused."""
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(WATCHDOG_S // 3)
    served = [name for name, call in _calls(comm) if not _is_refused(call)]
    sys.stderr.write(f"served: {served}\n")
    os._exit(len(served))


def _calls(comm: cr.Communicator) -> Iterator[tuple[str, Callable[[], object]]]:
    """Give all methods of all that a rank has, and what it has kept of them."""
    for thing in (comm, child, persistent, buckets, keeper):
        stays = type(thing).CALLS_IN_CHILD
        for name in (name for name in dir(thing) if name[0] != "_" and name not in stays):
            if callable(getattr(type(thing), name, None)):
                yield f"{type(thing).__name__}.{name}", getattr(thing, name)
    yield from ((f"kept {kept}", partial(kept, total, total + 0)) for kept in held)
    yield "Wait", request.Wait
    yield "test", request.test
    yield "init", cr.init
    yield "discover", cr.discover
    yield "Checkpointer", lambda: cr.checkpoint.Checkpointer(comm, name="copy")
    yield "wait", pending.committed.wait


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except cr.UsageError as error:
        return "forked" in str(error)
    except Exception as error:
        sys.stderr.write(f"{call}: {error!r}\n")
    return False


def fork() -> int:
    """Fork while another thread has the locks, which the child never gets."""
    locks = [TURN, comm._service.shortcuts._lock]
    are_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[0], locks[1]:
            are_held.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    are_held.wait()
    forked = os.fork()
    if forked:
        is_over.set()
        holder.join()
    return forked


def _works(number: int) -> int:
    return number * 2


WAYS: list[Callable[[cr.Communicator], None]] = [fails, exits, forsakes, closes, calls]

faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
comm = cr.init()
child = comm.Dup()
with comm:
    total, ended = np.zeros(1), []
    held: list[Callable[..., None]] = [comm.Allreduce, child.Allreduce]
    for _ in range(40):
        comm.Allreduce(np.ones(1), total)
    held += [comm.Allreduce, child.Bcast]
    persistent = comm.Allreduce_init(np.ones(1), total)
    buckets = comm.bucketed({"one": np.ones(9)})
    request = comm.Iallreduce(np.ones(1), np.zeros(1))
    keeper = cr.checkpoint.Checkpointer(comm, name=f"forks-{comm.bcast(os.getpid())}")
    pending = keeper.save(1, {"one": np.ones(3)})
    for way in WAYS:
        child.Allreduce(np.ones(1), total)
        if comm.rank == 1:
            forked = fork()
            if not forked:
                way(comm)
            sys.stderr.write(f"{way} {forked}\n")
            ended.append(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
        comm.Allreduce(np.ones(1), total)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        doubled = pool.map(_works, range(3))
    subprocess.run([sys.executable, "-c", ""], check=True, preexec_fn=lambda: None)
    request.Wait()
    pending.committed.wait()
    keeper.close()
    persistent.start()
    persistent.wait()
    sys.stdout.write(f"rank {comm.rank}: {total[0]:g} {doubled} {ended}\n")
