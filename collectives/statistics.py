"""Counters of a communicator, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from closeranks.collectives.problem import OPERATIONS

if TYPE_CHECKING:
    from closeranks.collectives.near import Near


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
    """

    calls: dict[str, int]
    bytes_per_level: dict[str, int]
    seconds: dict[str, float]
    algorithms: dict[str, dict[str, int]]


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
    near : dict of str to dict of int to Near
        Operation -> bytes of a buffer -> calls that go straight into node memory.
    """

    def __init__(self) -> None:
        self.near: dict[str, dict[int, Near]] = {name: {} for name in OPERATIONS}
        self.algorithms: dict[str, Counter[str]] = {}
        self._tallies: dict[tuple[str, str], list[int]] = {}
        self.seconds: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def count(self, operation: str, algorithm: str, seconds: float = 0.0) -> None:
        """Count one call."""
        self.algorithms.setdefault(operation, Counter())[algorithm] += 1
        self.seconds[operation] += seconds  # type: ignore[assignment]

    def tally(self, operation: str, algorithm: str) -> list[int]:
        """Return a list whose one number counts as calls; whoever asks counts it up."""
        return self._tallies.setdefault((operation, algorithm), [0])

    def freeze(self, shortcuts: Mapping[str, int]) -> Statistics:
        """Give the counters as they stand, with the calls that took shortcuts."""
        algorithms = {name: dict(counts) for name, counts in self.algorithms.items()}
        for name, straight in shortcuts.items():
            if straight:
                known = algorithms.setdefault(name, {})
                known["native"] = known.get("native", 0) + straight
        for (name, algorithm), (started,) in self._tallies.items():
            if started:
                known = algorithms.setdefault(name, {})
                known[algorithm] = known.get(algorithm, 0) + started
        for name, ways in self.near.items():
            near = sum(way.calls for way in ways.values())
            if near:
                known = algorithms.setdefault(name, {})
                known["shared"] = known.get("shared", 0) + near
        calls = {name: sum(counts.values()) for name, counts in algorithms.items()}
        return Statistics(calls, dict(self.sent), dict(self.seconds), algorithms)
