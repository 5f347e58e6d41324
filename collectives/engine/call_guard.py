"""The calls of a communicator: refused, counted, and in turn.

`CallGuard` refuses calls that the communicator does not take any more.
`Counters` counts the calls that it has taken.  A `Lane` runs the native
collectives of a group of ranks one after the other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import ulfm
from closeranks.errors import Revoked

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family


class CallGuard:
    """Refuses the calls of one communicator that can have no right end.

    Local; so is all that it does.

    Parameters
    ----------
    family : Family
        The communicator's.
    opened : callable
        Gives the communicator's world, None as long as it has none.
    """

    def __init__(self, family: Family, opened: Callable[[], World | None]) -> None:
        self._family, self._opened = family, opened
        self._shut = ""

    def shut(self, why: str) -> None:
        """Refuse all calls from now on."""
        self._shut = why

    def refuse_shut(self, operation: str) -> None:
        """Raise `Revoked` if there are no more calls, see `shut`."""
        forked_child.refuse_in_child(operation)
        if self._shut:
            raise Revoked(operation, problem=self._shut, remedy="make a new one", for_good=True)

    def refuse(self, operation: str) -> None:
        """Raise if a call cannot be served, whatever its arguments are.

        What is asked of a call that is right is asked here, without further calls.
        """
        family, own = self._family, self._opened()
        if forked_child.Process.is_child or self._shut:
            self.refuse_shut(operation)
        if family.left:
            family.refuse(operation)
        is_told = family.world.attendance.told or (own is not None and own.attendance.told)
        if is_told or family.notices.notice is not None:
            self.refuse_late(operation)

    def refuse_late(self, operation: str) -> None:
        """Raise what has ended the world, see `is_over`."""
        forked_child.refuse_in_child(operation)
        if self.is_over():
            for world in self._worlds():
                world.check(operation)

    def is_over(self) -> bool:
        """Tell whether the library would mix a call up with one that was given up.

        It revokes nothing without ULFM: where somebody was late, a call is under
        way on some ranks that others will never make.  Calls before the one at which
        this rank hears of it are made by all ranks.  Not so
        where a rank has given up: nobody knows which was its last.
        """
        if self._family.notices.notice is not None:
            return True
        told = [world for world in self._worlds() if world.attendance.told]
        return bool(told) and not ulfm.is_on() and any(world.revoked for world in told)

    def _worlds(self) -> tuple[World, ...]:
        own = self._opened()
        return (self._family.world,) if own is None else (self._family.world, own)


#: Ways of device arrays: the library took them, or they went through pinned memory.
LIBRARY, WHOLE, PIECES = "library", "whole", "pieces"


class Statistics(NamedTuple):
    """Counters of one rank since `init`.

    Attributes
    ----------
    calls : dict of str to int
        Operation -> number of calls.
    bytes_per_level : dict of str to int
        Level name -> bytes this rank's plans have sent over it; what the MPI
        library sends by itself is not known here.
    seconds : dict of str to float
        Operation -> seconds spent in blocking calls; small calls that go
        straight to the library are counted, not timed.
    algorithms : dict of str to dict of str to int
        Operation -> algorithm -> number of calls.
    device : dict of str to int
        How arrays on devices went -> number of calls, persistent ones aside:
        "library" and "nccl" took them as they are, others went through pinned
        host memory, "whole" or in "pieces".
    """

    calls: dict[str, int]
    bytes_per_level: dict[str, int]
    seconds: dict[str, float]
    algorithms: dict[str, dict[str, int]]
    device: dict[str, int]


class Counters:
    """What `Statistics` is made from.

    Attributes
    ----------
    algorithms : dict of str to Counter
        Operation -> algorithm -> calls.
    seconds : Counter
        Operation -> seconds.
    sent : Counter
        Level -> bytes.
    device : Counter
        How arrays on devices went -> calls.
    """

    def __init__(self) -> None:
        self.algorithms: dict[str, Counter[str]] = {}
        self._tallies: dict[tuple[str, str], list[int]] = {}
        self.seconds: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.device: Counter[str] = Counter()

    def count(self, operation: str, algorithm: str, seconds: float = 0.0) -> None:
        """Count one call."""
        counts = self.algorithms.get(operation)
        if counts is None:
            counts = self.algorithms.setdefault(operation, Counter())
        counts[algorithm] += 1
        self.seconds[operation] += seconds  # type: ignore[assignment]

    def count_sent(self, sent: Mapping[str, int]) -> None:
        """Count bytes, by level."""
        for level, nbytes in sent.items():
            self.sent[level] += nbytes

    def add(self, calls: Mapping[tuple[str, str], int]) -> None:
        """Count calls, by operation and algorithm."""
        for (operation, algorithm), number in calls.items():
            self.algorithms.setdefault(operation, Counter())[algorithm] += number

    def tally(self, operation: str, algorithm: str) -> list[int]:
        """Return a list whose one number counts as calls; whoever asks counts it up."""
        return self._tallies.setdefault((operation, algorithm), [0])

    def freeze(self, shortcuts: Mapping[tuple[str, str], int]) -> Statistics:
        """Give the counters as they stand, with the calls that took shortcuts."""
        algorithms = {name: dict(counts) for name, counts in self.algorithms.items()}
        started = {names: number for names, (number,) in self._tallies.items()}
        for (name, algorithm), number in (*shortcuts.items(), *started.items()):
            if number:
                known = algorithms.setdefault(name, {})
                known[algorithm] = known.get(algorithm, 0) + number
        calls = {name: sum(counts.values()) for name, counts in algorithms.items()}
        device = dict(self.device)
        return Statistics(calls, dict(self.sent), dict(self.seconds), algorithms, device)


class Lane(NamedTuple):
    """Where the native collectives of a group of ranks run.

    Attributes
    ----------
    comm : MPI.Intracomm
        The group's communicator.
    turns : deque
        ``(execution, step)``, in the order in which all ranks must issue them.
    """

    comm: MPI.Intracomm
    turns: deque[tuple[Any, int]]
