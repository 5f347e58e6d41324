"""The handler of a signal raises on seat 1 while members agree on how an attempt has ended.

    closeranks run --faults -n 4 -- alarms.py CASE

Each rank that is left prints what it met, in one line.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from typing import NoReturn
from unittest import mock

import numpy as np

import closeranks as cr
from closeranks.collectives.faults.recovery import Recovery

WATCHDOG_S = 50
#: When the alarm is, and when those come for whom seat 1 waits then, seconds after the sum.
SOON_S, LATER_S = 0.3, 1.0


class Alarm(Exception):
    """What a program makes of a signal."""


def ring(*_: object) -> NoReturn:
    """Raise in whatever is under way."""
    raise Alarm


def total(comm: cr.Communicator) -> int:
    """Sum what names the members."""
    given, taken = np.full(100, 1 << comm.seat), np.zeros(100, np.int64)
    comm.Allreduce(given, taken)
    return int(taken[0])


def attempted(comm: cr.Communicator, late: int, *, dies: bool, rings: int = 9) -> list[object]:
    """Sum, while one is late for the vote, or dies instead, and one's alarm rings in it."""
    found, attempt, met = 0, None, "nothing"
    try:
        for attempt in comm.attempts():
            with attempt:
                found = total(comm)
                if comm.seat == rings:
                    signal.setitimer(signal.ITIMER_REAL, SOON_S)
                if comm.seat == late and comm.epoch == 0:
                    time.sleep(LATER_S)
                    os.kill(os.getpid(), signal.SIGKILL) if dies else None
    except Alarm:
        met = "Alarm"
    return [met, attempt is not None and attempt.agreed, found]


def in_a_vote(comm: cr.Communicator) -> object:
    """What the others agree on holds here too."""
    return [*attempted(comm, 0, dies=False, rings=1), *attempted(comm, 9, dies=False)]


def in_a_vote_that_fails(comm: cr.Communicator) -> object:
    """Who is not there when the others repeat it hears so."""
    return [*attempted(comm, 2, dies=True, rings=1), *attempted(comm, 9, dies=False)]


def in_a_recovery(comm: cr.Communicator) -> object:
    """Who leaves the others in a recovery is one of the dead to them."""
    cut = mock.patch.object(Recovery, "_go_on", ring) if comm.seat == 1 else mock.MagicMock()
    with cut:
        said = attempted(comm, 2, dies=True)
    for call in (lambda: total(comm), lambda: attempted(comm, 9, dies=False)):
        try:
            said.append(call())
        except cr.Revoked as error:
            said.append(str(error).partition(";")[0])
    return said


def main() -> None:
    """Run one case and say what came of it."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    signal.signal(signal.SIGALRM, ring)
    comm = cr.init(on_failure="shrink")
    seat = comm.seat
    cases = {case.__name__: case for case in (in_a_vote, in_a_vote_that_fails, in_a_recovery)}
    try:
        said = cases[sys.argv[1]](comm)
    except cr.Error as error:
        comm.abandon()
        said = f"{type(error).__name__} {error}"
    else:
        comm.close()
    print(f"seat {seat}: {said}", flush=True)  # noqa: T201 - what the test reads


main()
