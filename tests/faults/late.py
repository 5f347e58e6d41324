"""A rank is late: the others name it.

``late.py before|inside``: it is stopped, where nobody can make it a dead one, before the
call that waits for it or inside of it; the others go. ``late.py attempt``: it computes in
an attempt, which all repeat; ``late.py waitall``: the library waits there. ``late.py after
algorithm``: it computes before a call that has a deadline, all handle that, and go on with
calls that have none. ``late.py again``: of three, where no thread answers, the last is late
and comes, then the second is late. ``late.py ahead``: a call that one is late for ends on
some, which wait in the next one for those who wait in it. ``late.py mute``: some have left
that call, and compute where no thread answers. ``late.py moved``: a rank dies inside of
``using``, and in the next world one is late and another one has arrived and gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI

import closeranks as cr

LIMIT_S = 1.0


def plain(world: cr.Communicator) -> MPI.Intracomm:
    """Give the ranks a communicator of the library's own, which has no deadlines."""
    return MPI.Intracomm(world).Dup()


def main(when: str) -> None:
    """Meet it."""
    world = cr.init(timeout_s=LIMIT_S)
    comm = plain(world)
    stopped, pids = comm.size - 2, comm.allgather(os.getpid())
    given = np.ones(1 << 20)
    world.Allreduce(given, np.empty_like(given), algorithm="ring")
    if comm.rank == stopped:
        if when == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    began = time.monotonic()
    try:
        while True:
            world.Allreduce(given, np.empty_like(given), algorithm="ring")
    except cr.PeerLate as error:
        _say(comm.rank, error, began)
    if comm.rank == 0:
        time.sleep(1.0)  # the others have said it by now
        os.kill(pids[stopped], signal.SIGCONT)
    comm.Barrier()
    world.abandon()


def repeat() -> None:
    """Be late in the first attempt, and well in the second."""
    with cr.init(on_failure="shrink", timeout_s=LIMIT_S) as comm:
        given, total = np.ones(1000), np.empty(1000)
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 2 and attempt.number == 1:
                    time.sleep(LIMIT_S + 2)
                began = time.monotonic()
                try:
                    comm.Allreduce(given, total)
                except cr.PeerLate as error:
                    _say(comm.rank, error, began)
                    raise
        sys.stdout.write(f"attempt {attempt.number}: {comm.size} ranks, {total[0]:g}\n")


def waitall() -> None:
    """Be late in the first attempt; the library tells of it in its own words."""
    with cr.init(on_failure="shrink", timeout_s=LIMIT_S) as comm:
        given, total = np.ones(1000), np.empty(1000)
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 2 and attempt.number == 1:
                    time.sleep(LIMIT_S + 2)
                MPI.Request.Waitall([comm.Iallreduce(given, total, algorithm="ring")])
        sys.stdout.write(f"attempt {attempt.number}: {comm.size} ranks, {total[0]:g}\n")


def after(algorithm: str) -> None:
    """Be late once, and see what the next calls do, and how long the end takes."""
    with cr.init() as comm:
        given, total = np.ones(1000), np.empty(1000)
        for _ in range(3):
            comm.Allreduce(given, total)  # of a size that is known
        began = time.monotonic()
        try:
            with comm.using(timeout_s=LIMIT_S):
                if comm.rank == 2:
                    time.sleep(LIMIT_S + 2)
                comm.Iallreduce(given, total, algorithm=algorithm).wait()
        except cr.PeerLate as error:
            _say(comm.rank, error, began)
        sums = [partial(call, given, total) for call in (comm.Allreduce, comm.Iallreduce)]
        others = [partial(comm.bcast, 1), partial(comm.digest, given), partial(comm.barrier)]
        others += [partial(comm.Reduce_scatter, given, total[:250]), partial(_using, comm)]
        others += [partial(comm.bucketed, {"a": total})]
        for call in (*sums, *others):
            try:
                call()
            except cr.PeerError:
                continue
            sys.stdout.write(f"rank {comm.rank} went on with {call}\n")
        began = time.monotonic()
    sys.stdout.write(f"closed after {time.monotonic() - began:.0f} s\n")


def again() -> None:
    """Be late, and come before it is told; then let another one be late."""
    world = cr.init(timeout_s=LIMIT_S)
    comm = plain(world)
    comm.Barrier()
    if comm.rank == 2:
        time.sleep(LIMIT_S + 0.25)
    world.Bcast(np.ones(4), root=2, algorithm="binomial")
    if comm.rank == 1:
        time.sleep(LIMIT_S + 2)
    began = time.monotonic()
    try:
        world.Barrier()
    except cr.PeerLate as error:
        _say(comm.rank, error, began)
    comm.Barrier()
    world.abandon()


def ahead(then_s: float = 0.0) -> None:
    """Be late for a call that lets the root and its neighbour go on, but not the last."""
    world = cr.init(timeout_s=LIMIT_S)
    comm = plain(world)
    world.Bcast(np.ones(4), root=0, algorithm="binomial")
    comm.Barrier()
    if comm.rank == 2:
        time.sleep(LIMIT_S + 2)
    began = time.monotonic()
    try:
        world.Bcast(np.ones(4), root=0, algorithm="binomial")
        time.sleep(then_s)
        world.Barrier()
    except cr.PeerLate as error:
        _say(comm.rank, error, began)
    comm.Barrier()
    world.abandon()


def moved() -> None:
    """Lose a rank inside of `using`; then be late before any call has had a deadline."""
    with cr.init(on_failure="shrink") as comm, comm.using(timeout_s=LIMIT_S):
        for attempt in comm.attempts():
            with attempt:
                if attempt.number == 1:
                    if comm.seat == 3:
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Barrier()
        for attempt in comm.attempts():
            with attempt:
                if attempt.number == 1:
                    _miss(comm)
        sys.stdout.write(f"attempt {attempt.number}: {comm.size} ranks\n")


def _miss(comm: cr.Communicator) -> None:
    """Let rank 1 be late for a call that rank 2 has left, to compute."""
    if comm.rank == 1:
        time.sleep(LIMIT_S + 2)
    began = time.monotonic()
    try:
        comm.Reduce(np.ones(4), np.empty(4), root=0, algorithm="binomial")
        time.sleep(LIMIT_S + 2)
        comm.Barrier()
    except cr.PeerLate as error:
        _say(comm.rank, error, began)
        raise


def _using(comm: cr.Communicator) -> None:
    with comm.using(timeout_s=LIMIT_S):
        pass


def _say(rank: int, error: cr.PeerLate, began: float) -> None:
    took_s = time.monotonic() - began
    sys.stdout.write(f"rank {rank}: {error.ranks} after {took_s:.1f} s: {error}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    scene, *options = sys.argv[1:]
    scenes: dict[str, Callable[..., None]] = {
        "before": partial(main, scene),
        "inside": partial(main, scene),
        "attempt": repeat,
        "waitall": waitall,
        "after": after,
        "again": again,
        "ahead": ahead,
        "mute": partial(ahead, LIMIT_S + 2),
        "moved": moved,
    }
    scenes[scene](*options)
