"""How many functions of the package one collective call runs, and in how many files.

    closeranks run -n 2 -- docs/internals/trip.py
    closeranks run --faults -n 3 -- docs/internals/trip.py failure

Each rank prints one line for the third call of ``algorithm="ring"`` and one for the third call
of "auto".  "gaps" is the third call of "auto" whose arrays no shortcut reads, on its way to the
library.  Two more lines are for calls of a race whose turn is the library's, and the kernel's
in node memory.  ``failure`` prints one line for an attempt in which the last rank is killed, and
for the attempt that follows on the ranks that are left.  ``list`` as another argument prints the
functions too.  Functions that Python generates (``__init__`` of a dataclass) are in no file, and
do not count.  A wait looks again and again: its last round counts, the earlier ones do not.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import closeranks
from closeranks.collectives.arguments.call_key import Agreed, size_class
from closeranks.collectives.communicator.communicator import Communicator
from closeranks.comms import wait

FOLDER = str(Path(closeranks.__file__).parent) + os.sep
#: Calls of a kind before the one that is looked at.
CALLS_BEFORE = 2
#: Communicators on which the third call is looked at.
TRIES = 8


class Entry(NamedTuple):
    """One call of a function: its file, its name, and the file of its caller."""

    file: str
    name: str
    caller: str


class Trip(NamedTuple):
    """What one call of a collective has run on this rank.

    Attributes
    ----------
    calls : int
        Calls of Python functions of the package.
    files : int
        Files that these functions are in.
    changes : int
        Calls from one file into another one.
    returns : int
        Changes to a file that this trip had entered before.
    turns : int
        Neighbours among the calls that are in unlike files.
    """

    calls: int
    files: int
    changes: int
    returns: int
    turns: int


class Recorder:
    """Notes the calls of functions of the package in this thread.

    Attributes
    ----------
    entries : list of Entry
        In the order of the calls.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._rounds: dict[FrameType, tuple[object, int]] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Run a call, and note what it calls."""
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)
            self._rounds.clear()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(FOLDER):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(FOLDER):
            caller = caller.f_back
        if caller is not None and caller.f_code is wait.wait.__code__:
            first, place = self._rounds.setdefault(caller, (frame.f_code, len(self.entries)))
            if first is frame.f_code:
                del self.entries[place:]  # a new round
        where = "" if caller is None else caller.f_code.co_filename.removeprefix(FOLDER)
        self.entries.append(Entry(file.removeprefix(FOLDER), frame.f_code.co_qualname, where))


def trip_of(entries: list[Entry]) -> Trip:
    """Count calls, files, changes of file and returns."""
    known, changes, returns = set[str](), 0, 0
    for entry in entries:
        if entry.file != entry.caller:
            changes += 1
            returns += entry.file in known
        known.add(entry.file)
    turns = sum(one.file != other.file for one, other in pairwise(entries))
    return Trip(len(entries), len(known), changes, returns, turns)


def third_call(comm: Communicator, algorithm: str) -> list[Entry]:
    """Note the third all-reduce of 8 floats, on a communicator of its own.  Collective.

    It is done `TRIES` times, each on a new communicator.  The shortest trip is
    the one that did not wait for another rank, if there is one.  "gaps" is "auto"
    with arrays that have gaps.
    """
    given, taken = np.ones((8, 2)), np.empty((8, 2))
    given, taken = (given[:, 0], taken[:, 0]) if algorithm == "gaps" else (given[:4], taken[:4])
    is_auto = algorithm in ("auto", "gaps")
    with_name: dict[str, Any] = {} if is_auto else {"algorithm": algorithm}
    found: list[list[Entry]] = []
    for _ in range(TRIES):
        fresh, recorder = comm.Dup(), Recorder()
        if algorithm == "gaps":
            fresh._service.chooser.pricing.kernels = {}  # the first calls are the library's
        for _ in range(CALLS_BEFORE):
            fresh.Allreduce(given, taken, **with_name)
        recorder.run(partial(fresh.Allreduce, given, taken, **with_name))
        fresh.Free()
        found.append(recorder.entries)
    return min(found, key=len)


def tried_calls(comm: Communicator) -> dict[str, list[Entry]]:
    """Note the shortest trip of each candidate in a race of all-reduces.  Collective."""
    given, taken, kind = np.ones(8), np.empty(8), Agreed("allreduce", size_class(64))
    fresh, found = comm.Dup(), dict[str, list[Entry]]()
    chooser = fresh._service.chooser
    chooser.try_all()
    fresh.Allreduce(given, taken)
    while (choice := chooser.settled(kind)).is_tried and choice.trial is not None:
        name, recorder = choice.trial.turn, Recorder()
        recorder.run(partial(fresh.Allreduce, given, taken))
        if chooser.settled(kind).is_tried:  # the last call of a race concludes it
            found[name] = min(recorder.entries, found.get(name, recorder.entries), key=len)
    fresh.Free()
    return found


def failed_attempt(comm: Communicator) -> list[Entry]:
    """Note an attempt whose last rank is killed, and the one after it.  Collective."""
    given, taken, recorder = np.ones(8), np.empty(8), Recorder()
    for _ in range(CALLS_BEFORE):
        comm.Allreduce(given, taken, algorithm="ring")

    def attempts() -> None:
        for number, attempt in enumerate(comm.attempts()):
            with attempt:
                if number == 0 and comm.rank == comm.size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.Allreduce(given, taken, algorithm="ring")

    recorder.run(attempts)
    return recorder.entries


def show(comm: Communicator, what: str, entries: list[Entry]) -> None:
    """Print the numbers of one trip on this rank, and its functions where that is asked for."""
    trip = trip_of(entries)
    lines = [f"rank {comm.rank}, {what}: " + ", ".join(f"{n} {k}" for k, n in
                                                       trip._asdict().items())]  # fmt: skip
    if "list" in sys.argv:
        lines += [f"  {entry.file}: {entry.name}" for entry in entries]
    print("\n".join(lines), flush=True)


def main() -> None:
    """Print the numbers of this rank."""
    fails = "failure" in sys.argv
    comm = closeranks.init(MPI.COMM_WORLD, on_failure="shrink" if fails else "raise")
    if fails:
        show(comm, "failed attempt and the next one", failed_attempt(comm))
    else:
        for algorithm in ("ring", "auto", "gaps"):
            show(comm, algorithm, third_call(comm, algorithm))
        tried = tried_calls(comm)
        for name in ("native", "shared"):
            if name in tried:  # a kernel is tried where all ranks share a node
                show(comm, f"a race, {name}", tried[name])
    comm.close()


if __name__ == "__main__":
    main()
