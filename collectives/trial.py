"""A trial: which candidate is faster, found on calls that are made anyway."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

#: A plan is preferred to the library if it takes less than this share of its time.
CLEAR = 0.95


@dataclass
class Trial:
    """Measures candidates in turn on the first calls of a kind.

    A pure state machine: `turn` says which candidate this call uses, `record`
    takes its local seconds, and once `is_full` the ranks combine `typical_s`
    by maximum and `settle`.

    Attributes
    ----------
    candidates : tuple of str
        At least two names; the last is the library's, the safe choice.
    rounds : int
        Calls for each candidate.
    """

    candidates: tuple[str, ...]
    rounds: int = 3
    samples: list[float] = field(default_factory=list)
    winner: str | None = None
    agreed_s: dict[str, float] = field(default_factory=dict)

    @property
    def turn(self) -> str:
        """The candidate for the next call."""
        return self.candidates[len(self.samples) % len(self.candidates)]

    @property
    def calls_left(self) -> int:
        """Calls until every candidate has had its rounds."""
        return max(0, self.rounds * len(self.candidates) - len(self.samples))

    @property
    def is_full(self) -> bool:
        """Whether every candidate has had its rounds."""
        return self.calls_left == 0

    def record(self, seconds: float) -> None:
        """Take the local time of the call that `turn` named."""
        self.samples.append(seconds)

    def typical_s(self) -> list[float]:
        """Median local time of each candidate; where it has several, without its first.

        Not the best: where ranks share cores, a plan of many steps is now and
        then lucky, and what counts is how it does on most calls.
        """
        n = len(self.candidates)
        return [median(self.samples[k::n][1:] or self.samples[k::n]) for k in range(n)]

    def settle(self, agreed_s: list[float]) -> str:
        """Choose by the agreed times; only a clear win beats the last candidate."""
        self.agreed_s = dict(zip(self.candidates, agreed_s, strict=True))
        last = self.candidates[-1]
        first = min(self.candidates, key=lambda name: self.agreed_s[name])
        is_clear = self.agreed_s[first] < CLEAR * self.agreed_s[last]
        self.winner = first if is_clear else last
        return self.winner
