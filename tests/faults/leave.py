"""A program whose ranks leave attempts in every way there is.

    closeranks run --faults -n 4 -- leave.py CASE

Each survivor prints what it met, in one line.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import closeranks as cr

WATCHDOG_S = 50


def total(comm: cr.Communicator, part: int = 1) -> int:
    """Sum over the members."""
    given, taken = np.full(100, part, np.int64), np.zeros(100, np.int64)
    comm.Allreduce(given, taken)
    assert (taken == taken[0]).all()
    return int(taken[0])


def for_ever(comm: cr.Communicator) -> None:
    """Sum until that fails."""
    while True:
        total(comm)


def die(comm: cr.Communicator, *seats: int) -> None:
    """End these."""
    if comm.seat in seats:
        os.kill(os.getpid(), signal.SIGKILL)


def an_error(comm: cr.Communicator) -> object:
    """One rank meets an error of its own; the others are told which."""
    for attempt in comm.attempts():
        with attempt:
            total(comm)
            if comm.seat == 1:
                raise RuntimeError("no more coffee")
            total(comm)
    return "nothing"


class LastWordsError(RuntimeError):
    """Nobody hears what it says."""

    def __repr__(self) -> str:
        """End the process that was about to tell the others."""
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def an_error_untold(comm: cr.Communicator) -> object:
    """One rank votes to end it all, and dies before it can say why."""
    for attempt in comm.attempts():
        with attempt:
            found = total(comm)
            if comm.seat == 1 and not comm.joined:
                raise LastWordsError
            total(comm)
    return found, attempt.number


def a_break(comm: cr.Communicator) -> object:
    """Leaving a failed attempt by break repeats nothing, and nobody can miss it."""
    for attempt in comm.attempts():
        with attempt:
            total(comm)
            die(comm, 2)
            break
    assert attempt.agreed is False
    with pytest.raises(cr.Revoked, match="was left, not repeated"):
        total(comm)
    for attempt in comm.attempts():
        with attempt:
            found = total(comm)
            break
    assert attempt.agreed
    return found


def a_break_alone(comm: cr.Communicator) -> object:
    """Who leaves a failed attempt that others repeat is told so by the next loop."""
    for attempt in comm.attempts():
        with attempt:
            total(comm)
            die(comm, 2)
            if comm.seat == 0:
                break
    found = []
    for attempt in comm.attempts():
        with attempt:
            found = [total(comm, 1 << comm.seat), attempt.number]
    return found


def no_use(comm: cr.Communicator) -> object:
    """What no recovery brings back ends the loop, on all ranks."""
    taken = np.zeros(comm.size)
    gathered, group = comm.Allgather_init(np.ones(1), taken), comm.Get_group()
    calls: list[Callable[[], object]] = [gathered.start, partial(total, comm.Create(group))]
    met: list[tuple[int, str]] = []
    for number, call in enumerate(calls):
        try:
            for attempt in comm.attempts(limit=9):
                with attempt:
                    die(comm, number + 1)
                    call()
        except cr.PeerError as error:
            met.append((attempt.number, "revoked" if "new one" in str(error) else str(error)))
    with pytest.raises(cr.PeerError, match="close"):
        comm.close()
    for attempt in comm.attempts():
        with attempt:
            met.append((attempt.number, str(total(comm))))
    return met


def a_limit(comm: cr.Communicator) -> object:
    """The last attempt's error is the end."""
    for attempt in comm.attempts(limit=2):
        with attempt:
            die(comm, attempt.number)
            total(comm)
    return "nothing"


def too_few(comm: cr.Communicator) -> object:
    """Who is left may say that they are too few."""
    for attempt in comm.attempts(min_ranks=3):
        with attempt:
            if attempt.number == 1:
                die(comm, 1, 2)
            total(comm)
    return "nothing"


def nested(comm: cr.Communicator) -> object:
    """An attempt inside of another one is refused, on all ranks."""
    for attempt in comm.attempts():
        with attempt:
            for inner in comm.attempts():
                with inner:
                    total(comm)
    return "nothing"


def unfinished(comm: cr.Communicator) -> object:
    """A request that nobody waits for is refused."""
    given, taken = np.ones(1 << 20), np.zeros(1 << 20)
    for attempt in comm.attempts():
        with attempt:
            if comm.seat == 0:
                comm.Iallreduce(given, taken)  # the others do not
    return "nothing"


def before_the_loop(comm: cr.Communicator) -> object:
    """What was met before the loop is recovered from when it begins."""
    die(comm, 3)
    with pytest.raises(cr.PeerLost, match="rank 3 lost"):
        for_ever(comm)
    for attempt in comm.attempts():
        with attempt:
            found = total(comm)
    return found, attempt.lost, attempt.number


def a_late_start(comm: cr.Communicator) -> object:
    """Who has not begun when the first attempt fails has missed it."""
    met: list[tuple[object, ...]] = []
    for limit in (None, 1):
        if comm.seat == 3:
            time.sleep(1)  # both others have given up before
        try:
            for attempt in comm.attempts(limit):
                with attempt:
                    if attempt.number == 1:
                        die(comm, 1 if limit else 2)
                    met.append((total(comm), attempt.number, attempt.lost))
        except cr.PeerLost as error:
            met.append((error.operation, error.seats))
    return met


def messages(comm: cr.Communicator) -> object:
    """Errors of plain messages are a reason to repeat too."""
    found = np.zeros(1)
    for attempt in comm.attempts():
        with attempt:
            if attempt.number == 1:
                die(comm, 2)
                comm.Recv(found, source=(comm.rank + 1) % comm.size, tag=attempt.number)
            found[0] = comm.allreduce(1)
    return int(found[0])


def children(comm: cr.Communicator) -> object:
    """Splits are made again, of those who are left; what came of a group is not."""
    halves, pairs = comm.Split(comm.rank % 2, -comm.rank), comm.Split(comm.rank // 2, comm.rank)
    inner = halves.Dup()
    group = comm.Get_group()
    lone = comm.Create(group)
    group.Free()
    comm.Split(0, 0).Free()
    for attempt in comm.attempts():
        with attempt:
            die(comm, 2)
            found = [total(one, 1 << comm.seat) for one in (comm, halves, pairs, inner)]
    assert [one.size for one in (halves, pairs, inner)] == [f.bit_count() for f in found[1:]]
    with pytest.raises(cr.Revoked, match="not made again"):
        total(lone)
    assert comm.seat == 0 or halves.alive[halves.rank] in (1, 3)
    later = comm.Split(0, 0)
    found.append(total(later, 1 << comm.seat))
    return found


CASES: dict[str, Callable[[cr.Communicator], object]] = {
    case.__name__: case
    for case in (an_error, an_error_untold, a_break, a_break_alone, no_use, a_limit, too_few,
                 nested, unfinished, before_the_loop, a_late_start, messages, children)
}  # fmt: skip


def main() -> None:
    """Run one case and say what came of it."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    comm = cr.init(on_failure="replace" if "CLOSERANKS_SPARES" in os.environ else "shrink")
    seat = comm.seat
    try:
        said = CASES[sys.argv[1]](comm)
    except (cr.Error, RuntimeError) as error:
        comm.abandon()
        said = f"{type(error).__name__} {error}"
    else:
        comm.close()
    print(f"seat {seat}: {said}", flush=True)  # noqa: T201 - what the test reads


main()
