"""A program that loses ranks and goes on: every result names who took part.

    closeranks run --faults -n 4 -- repeat.py BYTES ALGORITHM FORM KILLS [recruits|slow|late]

Rank ``seat`` adds ``2**seat``, so that a sum is the set of its participants.
KILLS are ``SEAT@STEP[:POINT]``; the program checks every sum of every step
against the members that agreed on it.  With ``run --spares`` the dead are
replaced, with ``recruits`` by new processes; newcomers are told in which step
the others are.  With ``slow`` those, as all others, take longer to come to
`init` than a recovery may; with ``late`` they come to MPI_Finalize when the
new ones have gone.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import closeranks as cr

STEPS = 60
WATCHDOG_S = 50
#: How long a slow program does something else first, and how long its recovery may take.
START_S = 2.5
RECOVERY_S = 2
#: How much later than new processes the others end.
LATE_S = 1


class Work:
    """One kind of all-reduce, as often as it is asked for."""

    def __init__(self, comm: cr.Communicator, nbytes: int, algorithm: str, form: str) -> None:
        self.comm, self.algorithm, self.form = comm, algorithm, form
        self.given = np.zeros(nbytes // 8, np.int64)
        self.taken = np.zeros_like(self.given)
        self.row = comm.Split(0, comm.rank) if form == "child" else comm
        self.persistent = (
            comm.Allreduce_init(self.given, self.taken, algorithm=algorithm)
            if form == "persistent"
            else None
        )

    def begin(self) -> None:
        """Write this rank's part."""
        self.given[:] = 1 << self.comm.seat
        self.taken[:] = 1 << self.comm.seat if self.form == "in place" else -1

    def do(self) -> None:
        """Sum once."""
        if self.persistent is not None:
            self.persistent.start()
            self.persistent.wait()
        elif self.form == "request":
            self.comm.Iallreduce(self.given, self.taken, algorithm=self.algorithm).wait()
        elif self.form == "object":
            self.taken[:] = self.comm.allreduce(1 << self.comm.seat)
        elif self.form == "in place":
            self.comm.Allreduce(MPI.IN_PLACE, self.taken, algorithm=self.algorithm)
        else:
            self.row.Allreduce(self.given, self.taken, algorithm=self.algorithm)


def kills() -> set[tuple[int, int, str]]:
    """Read who dies when, and where in a step."""
    found = set()
    for word in filter(None, sys.argv[4].split(",")):
        seat, _, rest = word.partition("@")
        step, _, point = rest.partition(":")
        found.add((int(seat), int(step), point or "before"))
    return found


def main() -> None:
    """Step, die if it is this rank's turn, check."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    slow = sys.argv[5:] == ["slow"]
    late = sys.argv[5:] == ["late"]
    recruits = slow or late or sys.argv[5:] == ["recruits"]
    replaces = recruits or "CLOSERANKS_SPARES" in os.environ
    time.sleep(START_S if slow else 0)
    comm = cr.init(
        on_failure="replace" if replaces else "shrink",
        recruits=recruits,
        recovery_timeout_s=RECOVERY_S if slow else 30,
    )
    work, schedule = Work(comm, int(sys.argv[1]), sys.argv[2], sys.argv[3]), kills()

    def die(step: int, point: str) -> None:
        if not comm.joined and (comm.seat, step, point) in schedule:
            if sum((step, point) == kill[1:] for kill in schedule) > 1:  # at once, then
                time.sleep(1 - time.monotonic() % 1)
            os.kill(os.getpid(), signal.SIGKILL)

    step = -1 if comm.joined else 0
    while step < STEPS:
        for attempt in comm.attempts():
            with attempt:
                if replaces:
                    said = comm.allgather((step, attempt.number, attempt.lost))
                    step = max(said)[0]
                    assert {one[1:] for one in said} == {(attempt.number, attempt.lost)}, said
                work.begin()
                die(step, "before")
                work.do()
                die(step, "after")
        step += 1
        members = sum(1 << seat for seat in comm.alive)
        wrong = int((work.taken != members).sum())
        assert not wrong, f"step {step}: {wrong} wrong, {work.taken[0]:b} for {members:b}"
        assert attempt.world == comm.size == len(comm.alive)
    who = f"{'newcomer' if comm.joined else 'survivor'} {comm.seat}"
    place = f"rank {comm.rank} of {comm.size}, epoch {comm.epoch}"
    came = sum(map(comm.incarnation, comm.alive))
    print(f"{who}: {place}, {came} newcomers", flush=True)  # noqa: T201 - what the test reads
    comm.close()
    time.sleep(LATE_S if late and not comm.joined else 0)


main()
