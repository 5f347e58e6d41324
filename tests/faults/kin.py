"""Communicators of one family, and what was made on them, after a death; one case a run.

    closeranks run --faults -n 4 -- tests/faults/kin.py CASE

Every rank that is left ends with "seat N: ok", or with what is wrong.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.communicator.children import Children
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.collectives.dispatch.persistent_operation import Persistent
from closeranks.collectives.faults.survivor_creation import Lineage
from closeranks.comms.mpi import ulfm

WATCHDOG_S = 50
#: Who dies, and how often a call is made until machine code serves it.
GONE, OFTEN = 3, 1500


def die() -> NoReturn:
    """End this rank, once the others have ended the call before."""
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def mask(seats: tuple[int, ...]) -> int:
    """Give the sum that only these seats make."""
    return sum(1 << seat for seat in seats)


def lose(comm: cr.Communicator, then: Callable[[], object] = int) -> None:
    """Lose a rank; do something in the attempt that comes after it."""
    for attempt in comm.attempts():
        with attempt:
            if comm.epoch == 0 and comm.seat == GONE:
                die()
            total(comm)
            then()


def total(comm: cr.Communicator, algorithm: str = "auto") -> None:
    """Check a sum of all members."""
    given, taken = np.full(10, 1 << comm.seat), np.zeros(10, np.int64)
    comm.Allreduce(given, taken, algorithm=algorithm)
    assert (taken == mask(comm.alive)).all(), f"{taken[0]:b} of {comm.alive}"


def run(operation: Persistent) -> None:
    """Start it once more, and wait for it."""
    operation.start()
    operation.wait()


def refused(call: Callable[[], object]) -> None:
    """Check that something is of no use any more, and says so."""
    told = False
    try:
        call()
    except cr.Revoked as error:
        told = error.for_good
    assert told, call


def freed_parent(comm: cr.Communicator, often: int = 0) -> None:
    """What came of one that was freed is made again."""
    pair = comm.Split(comm.rank // 2, comm.rank)
    twin = pair.Dup()
    pair.Free()
    for _ in range(often):
        total(twin)
    lose(comm, lambda: total(twin, "native"))
    total(twin)
    twin.Free()
    assert not comm.membership.lineage.children()


def freed_parent_in_use(comm: cr.Communicator) -> None:
    """So it is where calls have become machine code."""
    freed_parent(comm, OFTEN)


def group_of_some(comm: cr.Communicator) -> None:
    """What some have made alone does not change what others are."""
    group = comm.Get_group()
    comm.Create_group(group.Incl([0, 1]), tag=3)  # by all, who may or may not be in it
    head = comm.Create_group(group.Incl([0, 1]), tag=1) if comm.rank < 2 else None
    everybody = comm.Dup()
    if comm.rank >= 2:
        comm.Create_group(group.Incl([2, 3]), tag=2).Free()
    lose(comm, lambda: total(everybody))
    assert everybody.alive == comm.alive
    if head is not None:
        refused(lambda: total(head))
        head.Free()


def given_up(comm: cr.Communicator) -> None:
    """What came of a group says so, whatever it is asked, and costs nothing else."""
    child = comm.Create(comm.Get_group())
    operation = child.Bcast_init(np.zeros(10), root=GONE)
    for attempt in comm.attempts():
        with attempt:  # which ends when all have had it: the root is the one that dies
            run(operation)
    lose(comm)
    for call in (operation.start, lambda: child.empty(10), child.Dup, lambda: total(child)):
        refused(call)
        total(comm)
    with suppress(cr.Revoked), child.using(algorithm="native"):
        raise AssertionError
    total(comm)
    child.close()


def left_by_a_death(comm: cr.Communicator) -> None:
    """A child's block that a death ends costs the child alone; none is kept."""
    for attempt in comm.attempts():
        with attempt, comm.Split(comm.rank % 2, comm.rank) as row:
            if comm.epoch == 0 and comm.seat == GONE:
                die()
            total(comm)
            total(row)
    assert not comm.membership.lineage.children()
    assert not ulfm.leaves()


def closed_in_vain(comm: cr.Communicator) -> None:
    """One that cannot be closed, or is not even had, is not made again either."""
    for attempt in comm.attempts():
        with attempt:
            row = comm.Split(comm.rank % 2, comm.rank)
            try:
                if comm.epoch == 0 and comm.seat == GONE:
                    die()
                total(comm)
            finally:
                with suppress(cr.PeerError):
                    row.Free()
    assert not comm.membership.lineage.children()


def first_calls_are_timed(comm: cr.Communicator) -> None:
    """The first call of what was made again has a deadline."""
    child = comm.Dup()
    lose(comm)
    if comm.rank == 1:
        time.sleep(4)
    began = time.monotonic()
    with suppress(cr.PeerError):
        total(child)
    assert time.monotonic() - began < 3
    comm.abandon()


def wire_is_kept(comm: cr.Communicator) -> None:
    """A persistent sum rounds as its block has said, also when it is bound again."""
    given = np.full(64, 2048 if comm.seat == 0 else 1, np.float16)
    taken = np.zeros(64, np.float16)
    with comm.using(wire="float32"):
        operation = comm.Allreduce_init(given, taken, algorithm="ring")
    lose(comm, lambda: run(operation))
    assert (taken == np.float16(2050)).all(), taken


def held_methods(comm: cr.Communicator) -> None:
    """Who holds the methods of a persistent operation may go on to."""
    pair = comm.Split(comm.rank // 2, comm.rank)
    given, taken = np.full(10, 1 << comm.seat), np.zeros(10, np.int64)
    operation = pair.Allreduce_init(given, taken)
    start, finish, test = operation.start, operation.Wait, operation.Test
    for _ in range(3):
        lose(comm, lambda: (start(), test(), finish()))
        assert (taken == mask(pair.alive)).all()


def start_is_unfinished(comm: cr.Communicator) -> None:
    """What was started has to be over at the end of an attempt."""
    operation = comm.Allreduce_init(MPI.IN_PLACE, np.ones(10))
    said: Exception | None = None
    try:
        for attempt in comm.attempts():
            with attempt:
                if comm.seat:
                    operation.start()
    except (cr.UsageError, cr.PeerLost) as error:
        said = error
    assert "unfinished" in str(said), said
    comm.abandon()


def counts_are_asked(comm: cr.Communicator) -> None:
    """A death is told as one where the ranks ask each other first."""
    given, taken = np.ones(comm.size), np.zeros(1)
    for call in (lambda: comm.Reduce_scatter(given, taken), lambda: comm.bucketed({"a": given})):
        for attempt in comm.attempts():
            with attempt:
                if comm.epoch == 0 and comm.seat == GONE:
                    die()
                try:
                    for _ in range(3):
                        call() if comm.size == given.size else comm.Barrier()
                except MPI.Exception as error:
                    raise AssertionError from error


def void(comm: cr.Communicator, kind: str) -> None:
    """What was started before a recovery is done for nobody who waits after it."""
    given, taken, said = np.full(4, 1 << comm.seat), np.full(4, -1), ""
    how, _, algorithm = kind.partition(" ")
    running: Any
    if how == "buckets":
        running = comm.bucketed({"a": given}, op=MPI.SUM)
    elif how == "persistent":
        running = comm.Allreduce_init(given, taken, algorithm=algorithm)
    if comm.seat == GONE:
        time.sleep(0.2)  # all have started
    elif how == "buckets":
        running.ready("a")
    elif how == "persistent":
        running.start()
    else:
        running = comm.Iallreduce(given, taken, algorithm=algorithm)
    try:
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == GONE:
                    die()
                running.wait()
    except (cr.Revoked, cr.PeerLost, cr.UsageError) as error:
        said = f"{error} {error.__cause__} {getattr(error, 'cause', '')}"
    assert "started before a recovery" in said or "not ready" in said, said
    assert (comm.size, attempt.number) == (3, 2), "a recovery that is for nothing"
    comm.abandon()


def forsaken(comm: cr.Communicator) -> None:
    """Nobody has again what one rank has heard of a death in, before it had it."""
    child, met, said = None, Children.met, ""

    def fails_once(self: Children, made: Communicator) -> Communicator:
        made = met(self, made)
        if comm.seat == 2 and comm.epoch == 0:
            made.membership.forsake(made)
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
        return made

    try:
        for attempt in comm.attempts():
            with mock.patch.object(Children, "met", fails_once), attempt:
                if child is None:
                    child = comm.Split(0, comm.rank)
                if comm.seat == GONE:
                    die()
                child.Barrier()
    except (cr.Revoked, cr.PeerLost) as error:
        said = str(error)
    assert "is not made again" in said, said
    comm.abandon()


def forsaken_twice(comm: cr.Communicator) -> None:
    """So it is where another rank dies when all has been made again."""
    row, again = comm.Dup(), Lineage.again

    def dies_after(self: Lineage, plain: MPI.Intracomm) -> Any:
        made = again(self, plain)
        if comm.seat == 1 and self is comm.membership.lineage:
            die()
        return made

    with mock.patch.object(Lineage, "again", dies_after):
        for attempt in comm.attempts():
            with attempt:
                if comm.seat == 2 and attempt.number == 1:
                    with suppress(ZeroDivisionError), row:
                        raise ZeroDivisionError
                if comm.seat == GONE:
                    die()
                total(comm)
    if comm.seat == 0:
        refused(lambda: total(row))


def gradients(comm: cr.Communicator, *, anew: bool) -> None:
    """Sum in buckets, made in every epoch or once."""
    state, values = {"step": 0}, np.zeros(1000)
    made, epoch = None, -1
    while state["step"] < 4:
        for attempt in comm.attempts():
            with attempt:
                comm.synchronize(state)
                if (comm.seat, state["step"], comm.joined) == (GONE, 2, False):
                    die()
                if made is None or (anew and epoch != comm.epoch):
                    made, epoch = comm.bucketed({"a": values}, op=MPI.SUM), comm.epoch
                values[:] = 1 << comm.seat
                made.ready("a")
                made.wait()
        assert (values == mask(comm.alive)).all()
        state["step"] += 1


def made_anew(comm: cr.Communicator) -> None:
    """Newcomers and members make buckets together where the epoch has changed."""
    gradients(comm, anew=True)
    assert comm.incarnation(GONE) == 1


def made_once(comm: cr.Communicator) -> None:
    """Members that keep theirs, where newcomers make them, hear of it."""
    said = ""
    try:
        gradients(comm, anew=False)
    except (cr.Revoked, cr.PeerLost) as error:
        said = f"{error} {error.cause if isinstance(error, cr.PeerLost) else ''}"
    assert "newcomers make theirs" in said, said
    comm.abandon()


CASES: dict[str, Callable[[cr.Communicator], None]] = {
    case.__name__: case
    for case in (freed_parent, freed_parent_in_use, group_of_some, given_up, left_by_a_death,
                 closed_in_vain, first_calls_are_timed, wire_is_kept, held_methods,
                 start_is_unfinished, counts_are_asked, forsaken, forsaken_twice, made_anew,
                 made_once)
}  # fmt: skip
KINDS = ("buckets", "persistent native", "persistent ring", "persistent shared", "request native",
         "request ring")  # fmt: skip
CASES |= {kind: partial(void, kind=kind) for kind in KINDS}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    case = CASES[sys.argv[1]]
    comm = cr.init(
        on_failure="replace" if "CLOSERANKS_SPARES" in os.environ else "shrink",
        timeout_s=1 if case is first_calls_are_timed else None,
    )
    seat = comm.seat
    case(comm)
    print(f"seat {seat}: ok", flush=True)  # noqa: T201
    comm.close()
