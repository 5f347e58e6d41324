"""Counters of a communicator, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    pass

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
        self.algorithms.setdefault(operation, Counter())[algorithm] += 1
        self.seconds[operation] += seconds  # type: ignore[assignment]

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
