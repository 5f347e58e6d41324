"""Count the Python calls that a warm save and a restore make, by file.

closeranks run -n 2 -- docs/internals/checkpoint_trip.py

Only functions of the package count, on the caller's thread.  A wait calls a few
functions again and again until another rank answers: the calls below `wait` are
polls, and are reported apart.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import closeranks as cr
from closeranks.checkpoint import Checkpointer, PerRank, Shard

ROOT = f"{Path(cr.__file__).parent}/"
WAIT = ("comms/wait.py", "wait")
DECODE = ("checkpoint/placement/slot_header.py", "decode")
SUMMED = ("checkpoint/memory/slot_file.py", "_sum")
DATA = ("checkpoint/erasure/crc32c.py", "damaged")
#: Saves before the one that is counted.
WARM = 2


@dataclass
class Trip:
    """The calls of one flow on this rank.

    Attributes
    ----------
    calls : Counter of (str, str)
        File and function -> calls that are work.
    polls : int
        Calls below a wait.
    returns : int
        How often the flow has entered a file that it had left before.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    polls: int = 0
    returns: int = 0
    _visited: set[str] = field(default_factory=set)
    _here: str = ""
    _waits: int = 0

    @property
    def files(self) -> set[str]:
        """The files that were entered."""
        return {file for file, _ in self.calls}

    def follow(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call or a return; for `sys.setprofile`."""
        name = frame.f_code.co_filename
        if event not in ("call", "return") or not name.startswith(ROOT):
            return
        place = name.removeprefix(ROOT), frame.f_code.co_name
        is_wait = place == WAIT
        if event == "return":
            self._waits -= is_wait
        elif self._waits:
            self._waits += is_wait
            self.polls += 1
        else:
            self._waits += is_wait
            self._note(place)

    def _note(self, place: tuple[str, str]) -> None:
        """Count a call that is work."""
        self.calls[place] += 1
        if place[0] != self._here:
            self.returns += place[0] in self._visited
            self._visited.add(self._here)
            self._here = place[0]

    def report(self, name: str) -> str:
        """Say it in one line."""
        return (
            f"{name}: {self.calls.total()} calls in {len(self.files)} files, "
            f"{self.returns} returns to a file already left, {self.polls} polls; "
            f"{self.calls[DECODE]} headers decoded, {self.calls[SUMMED]} summed, "
            f"{self.calls[DATA]} slots' data summed"
        )


@contextmanager
def followed() -> Iterator[Trip]:
    """Follow what this thread does."""
    trip = Trip()
    sys.setprofile(trip.follow)
    try:
        yield trip
    finally:
        sys.setprofile(None)
    trip.calls.pop((Path(__file__).name, "followed"), None)


def _state(comm: cr.Communicator, *, plain: bool) -> dict[str, Any]:
    """Make a state with one array, or with an entry of each kind."""
    if plain:
        return {"weights": np.arange(5000.0)}
    rows = 1000
    return {
        "alike": np.arange(5000.0),
        "own": PerRank(np.full(3000, comm.rank)),
        "part": Shard(np.ones((rows, 8)), (rows * comm.size, 8), (rows * comm.rank, 0)),
        "step": 7,
    }


def _saved(
    comm: cr.Communicator, keeper: Checkpointer, count: int, *, plain: bool = False
) -> dict[str, Any]:
    """Make some saves."""
    state = _state(comm, plain=plain)
    for step in range(count):
        keeper.save(step, state).committed.wait()
    comm.Barrier()
    return state


def save_trip(comm: cr.Communicator) -> Trip:
    """Follow the third save of one array, on the caller's thread.  Collective."""
    with Checkpointer(comm, name="save-trip", group=max(2, comm.size)) as keeper:
        state = _saved(comm, keeper, WARM, plain=True)
        with followed() as trip:
            pending = keeper.save(WARM, state)
        pending.committed.wait()
        comm.Barrier()
    return trip


def restore_trip(comm: cr.Communicator) -> Trip:
    """Follow a restore after three saves, of the same checkpointer.  Collective."""
    with Checkpointer(comm, name="restore-trip", group=max(2, comm.size)) as keeper:
        _saved(comm, keeper, WARM + 1)
        with followed() as trip:
            keeper.restore()
        comm.Barrier()
    return trip


def restart_trip(comm: cr.Communicator) -> Trip:
    """Follow a restore of a new checkpointer, as after a restart.  Collective."""
    keeper = Checkpointer(comm, name="restart-trip", group=max(2, comm.size))
    _saved(comm, keeper, WARM + 1)
    keeper.close(keep=True)
    with Checkpointer(comm, name="restart-trip", group=max(2, comm.size)) as keeper:
        with followed() as trip:
            keeper.restore()
        comm.Barrier()
    return trip


#: What is followed.
TRIPS: dict[str, Callable[[cr.Communicator], Trip]] = {
    "save": save_trip,
    "restore": restore_trip,
    "restart": restart_trip,
}


def main() -> None:
    """Print a line for each flow, as rank 0 has seen it."""
    detailed = "-v" in sys.argv[1:]
    with cr.init() as comm:
        for name, follow in TRIPS.items():
            trip = follow(comm)
            if comm.rank == 0:
                print(trip.report(name))
                if detailed:
                    for place, count in trip.calls.most_common():
                        print(f"{count:6} {':'.join(place)}")


if __name__ == "__main__":
    main()
