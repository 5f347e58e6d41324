"""A program that sums gradients of a code, and loses a rank in one of its rounds.

    closeranks run --faults -n 4 -- tests/faults/coded_dies.py SCHEME WHEN [POLICY]

WHEN says what seat 1 does when it is killed, see `DOOMS` and `EARLY`.  POLICY is
"shrink" if not given.  The others go on with the
same `CodedAllreduce`, which begins anew after the recovery.  Newcomers make one.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

import closeranks as cr
from closeranks.collectives.coded import (
    MSGC,
    CodedAllreduce,
    FractionalRepetition,
    PartialRepetition,
    Recorder,
    Repetition,
)
from closeranks.collectives.coded.transport.round_memory import HELPS, PLACED, STATE, RoundMemory

TURNS, AT, BATCHES, WATCHDOG_S = 50, 5, 32, 50
SCHEMES: dict[str, Callable[[int], Any]] = {
    "partial": lambda n: PartialRepetition(n, min(3, n - 1)),
    "repetition": lambda n: Repetition(n, 1),
    "delayed": lambda n: MSGC(n, 1, 2, 2),
    "fractional": lambda n: FractionalRepetition(n, 1),
}


def die(*_: object, **__: object) -> NoReturn:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def then_die(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a call, and be killed."""
    return lambda *given: die(call(*given))


def state_at(coded: Any) -> int:
    """Give the address of the word that says what this rank does in this round."""
    address: int = coded._memory.rank_word(coded.round + 1, coded._member, STATE)
    return address


def on_placed(coded: Any) -> None:
    """Die when its part of the sum is there, while it waits for the others."""
    store = coded._memory.words.store

    def stored(address: int, value: int) -> None:
        store(address, value)
        if value == PLACED and address == state_at(coded):
            die()

    coded._memory.words.store = stored


def on_help(coded: Any) -> None:
    """Die while it computes a micro-batch of another rank."""
    compute = coded._shared._compute

    def computed(*given: Any) -> None:
        if coded._memory.words.load(state_at(coded)) == HELPS:
            die()
        compute(*given)

    coded._shared._compute = computed


def on_decided(coded: Any) -> None:
    """Die when it hears, too late, that the round is decided."""
    is_over = coded._is_over
    coded._is_over = lambda: is_over() and die()


def on_leave(coded: Any) -> None:
    """Die as the last one that leaves the round, before its slot is cleared."""
    leave = coded._memory.leave

    def left(round_: int) -> None:
        time.sleep(0.1)
        die(leave(round_))

    coded._memory.leave = left


def on_claim(coded: Any) -> None:
    """Die when it has claimed a micro-batch, before it is added."""
    layout = coded._vectors.layout
    layout.add = lambda flats, *_, **__: die() if flats is not coded._shared._scratch else None


#: What seat 1 is doing when it dies, in the round `AT`.
DOOMS: dict[str, Callable[[Any], object]] = {
    "waiting": lambda coded: setattr(coded._decision, "try_to_end", die),
    "decided": lambda coded: setattr(coded, "_deliver", die),
    "sending": lambda coded: setattr(coded._exchange, "_sum", then_die(coded._exchange._sum)),
    "gathering": on_placed,
    "helping": on_help,
    "late": on_decided,
    "leaving": on_leave,
    "claimed": on_claim,
    "computing": lambda coded: setattr(coded, "_work", die),
    "locked": lambda coded: setattr(coded._decision, "_acceptor", die),
    "telling": lambda coded: setattr(
        coded._messages, "tell_all", then_die(coded._messages.tell_all)
    ),
    "entering": lambda coded: setattr(coded, "_enter", die),
}
#: The same, before the first round and after the last one.
EARLY = ("constructing", "before", "layout", "closing")


class Program:
    """What one rank does."""

    def __init__(self, comm: cr.Communicator, scheme: str, when: str) -> None:
        self.comm, self.make, self.when = comm, SCHEMES[scheme], when
        self.coded: Any = None
        self.recorder: Recorder | None = None
        self.folder = tempfile.TemporaryDirectory()  # of rank 0 counts
        self.doomed = comm.seat == 1 and not comm.joined
        self.said: list[str] = []
        self.given: list[int] = []

    def part(self, turn: int) -> Callable[[int], NDArray[np.float64]]:
        """Give what computes the gradient of a micro-batch."""
        comm, when = self.comm, self.when
        is_at = turn == AT and comm.epoch == 0
        pause_s = 0.0002
        if is_at and (when, comm.seat) in {("helping", 2), ("late", 1)}:
            pause_s = 0.05

        def gradient(number: int) -> NDArray[np.float64]:
            if self.doomed and when == "layout":
                die()
            time.sleep(pause_s)
            return np.full(1000, 1000.0 * turn + number)

        return gradient

    def open(self) -> None:
        """Make a `CodedAllreduce`, in an attempt or before."""
        if self.doomed and self.when == "constructing":
            RoundMemory.word = die  # type: ignore[method-assign]
        scheme = self.make(self.comm.size)
        self.coded = CodedAllreduce(self.comm, scheme, record=self.recorder)

    def step(self, turn: int) -> None:
        """Sum the gradients of one turn, and compare."""
        if self.coded is None:
            self.open()
        if self.doomed and (turn == AT and self.when in DOOMS):
            DOOMS[self.when](self.coded)
        if self.doomed and self.when == "before":
            die()
        found = self.coded.step(self.part(turn), BATCHES)
        if found is not None:
            due = turn - self.coded.scheme.delay
            assert (found == 1000.0 * due * BATCHES + sum(range(BATCHES))).all(), (turn, found[0])
            self.given.append(due)

    def run(self) -> None:
        """Run all turns; each is repeated until all ranks have agreed."""
        comm, state = self.comm, {"turn": 0}
        if self.when != "constructing" and not comm.joined:
            self.recorder = Recorder(comm, Path(self.folder.name, "seconds"))
            self.open()
        while state["turn"] < TURNS:
            for attempt in comm.attempts():
                with attempt:
                    comm.synchronize(state)
                    try:
                        self.step(state["turn"])
                    except cr.PeerError as error:
                        self.said.append(type(error).__name__)
                        raise
                    if attempt.lost:
                        assert attempt.lost == (1,)
                if not attempt.agreed:
                    self.said.append(f"failed in turn {state['turn']}")
            state["turn"] += 1
        if self.doomed and self.when == "closing":
            self.coded._part = die
        for attempt in comm.attempts():
            with attempt:
                self.coded.close()
        if self.recorder is not None and comm.epoch:
            self.recorder.close()  # which waits for nobody: the ranks are others
        seats = ", ".join(map(str, comm.alive))
        said, turns = ", ".join(self.said), len(set(self.given))
        sys.stdout.write(f"seat {comm.seat}: of {seats}, {turns} turns, {said}\n")


def main() -> None:
    """Lose a rank, and go on."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    scheme, when, *policy = sys.argv[1:]
    assert when in DOOMS or when in EARLY
    seat = -1
    try:
        with cr.init(on_failure=policy[0] if policy else "shrink") as comm:
            seat = comm.seat
            Program(comm, scheme, when).run()
    except cr.UsageError as error:
        sys.stdout.write(f"seat {seat}: {error}\n")


main()
