"""A trial: which candidate is faster, found on calls that are made anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

#: A plan is preferred to the library if it takes less than this share of its time,
#: and one that was preferred stays so if it takes less than that.
CLEAR, STAYS = 0.9, 1.0
#: A plan that takes at least this share of the library's time meets it again in a
#: final of so many times the rounds: a plan is given up for good, so it loses twice.
#: Plans of which the winner takes at least this share are looked at again with it.
CLOSE, FINAL = 0.7, 3
#: Calls so short that they have at least so many rounds run a third race, of again as
#: many times the rounds, where the final gives the library a plan that was close: memory
#: that a kernel goes round in is not warm before.
SHORT = 16
#: So there are at most so many races.
RACES = 3
#: Where each has a single turn, plans that the fastest does not beat by more than
#: this share of their time meet it again for so many rounds.
TIE, REPLAY = 0.8, 2
#: Where there are so many rounds, a candidate has so many turns in a row, the first
#: of which do not count: they find the caches (a kernel comes back to its first copy buffer
#: after four calls), the buffers of switches and the credit of a slowed-down link as the
#: candidate before left them.
MANY, BURST, FIRST = 8, 8, 4


@dataclass
class Trial:
    """Measures candidates in turn on calls of a kind.

    A pure state machine: `turn` says which candidate this call uses, `record`
    takes its local seconds, and once `is_full` the ranks combine ``samples`` by
    maximum, call by call, and `settle`: a call has taken as long as its slowest
    rank.  A race that no plan wins clearly is run again between the first plan and
    the library; after single turns, between all that are close.  Short calls that
    lose the final narrowly have one more race.

    Attributes
    ----------
    candidates : tuple of str
        At least two names, the best guess first; the last is the safe choice: the
        library's, or, where that takes no part, the best guess.  In the final
        the remaining ones.
    rounds : int
        Calls for each candidate.
    races : int
        Races that were run before this one.
    samples : list of float
        Seconds, in the order of the calls.
    winner : str or None
        Once it is settled.
    agreed_s : dict of str to float
        Candidate -> agreed seconds, of its last race.
    looks : int
        How many times a winner has met the others again.
    """

    candidates: tuple[str, ...]
    rounds: int = 3
    races: int = 0
    samples: list[float] = field(default_factory=list)
    winner: str | None = None
    agreed_s: dict[str, float] = field(default_factory=dict)
    looks: int = 0

    def __post_init__(self) -> None:
        self._first_rounds, self._safe = self.rounds, self.candidates[-1]

    @property
    def rivals(self) -> tuple[str, ...]:
        """Who meets again once there is a winner: it, close ones, and the safe choice.

        Nobody where nothing comes near the safe choice.
        """
        assert self.winner is not None
        near_s = self.agreed_s[self.winner] / CLOSE
        close = (name for name, seconds in self.agreed_s.items() if seconds <= near_s)
        plans = dict.fromkeys(name for name in (self.winner, *close) if name != self._safe)
        return (*plans, self._safe) if plans else ()

    def meet_again(self) -> None:
        """Let the winner meet its `rivals`: it must win again now and then."""
        self._meet(self.rivals, self._first_rounds, races=0)
        self.winner, self.looks = None, self.looks + 1

    @property
    def turn(self) -> str:
        """The candidate for the next call."""
        return self.candidates[len(self.samples) // self._burst % len(self.candidates)]

    @property
    def _burst(self) -> int:
        return BURST if self.rounds >= MANY else 1

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

    def settle(self, agreed_s: Sequence[float]) -> str | None:
        """Choose by the agreed seconds of every call, or start the final and return None."""
        self.agreed_s.update(zip(self.candidates, self._typical_s(agreed_s), strict=True))
        plans, first, share = self._leader()
        rivals: tuple[str, ...] = ()
        if self.races == 0:
            rivals = self._close(plans, first, share)
        elif self.races < RACES - 1 and self._first_rounds >= SHORT:
            is_far = share > 1 / CLOSE
            rivals = () if is_far or share < self._clear else (first, self._safe)
        if len(rivals) > 1:
            rounds = FINAL * self.rounds if self.rounds > 1 else REPLAY
            self._meet(rivals, rounds, races=self.races + 1)
            return None
        return self.decide()

    def decide(self) -> str:
        """Choose by what is known, without another race."""
        _, first, share = self._leader()
        self.winner = first if share < self._clear else self._safe
        return self.winner

    @property
    def _clear(self) -> float:
        """The share of the safe choice's time below which a plan wins."""
        return STAYS if self.looks else CLEAR

    def _leader(self) -> tuple[list[str], str, float]:
        """Give the plans, the fastest of them, and its share of the safe choice's time."""
        plans = [name for name in self.candidates if name != self._safe]
        first = min(plans, key=lambda name: self.agreed_s[name])
        return plans, first, self.agreed_s[first] / max(self.agreed_s[self._safe], 1e-9)

    def _close(self, plans: Sequence[str], first: str, share: float) -> tuple[str, ...]:
        """Give candidates that may win: after a turn each, the first or the safe one."""
        close = self.agreed_s[first] / TIE if self.rounds == 1 and share < 1.0 else 0.0
        near = [name for name in plans if name == first or self.agreed_s[name] <= close]
        return (*near, self._safe) if share > CLOSE else tuple(near)

    def _meet(self, candidates: tuple[str, ...], rounds: int, *, races: int) -> None:
        """Start a race."""
        self.candidates, self.rounds, self.races = candidates, rounds, races
        self.samples.clear()

    def _typical_s(self, agreed_s: Sequence[float]) -> list[float]:
        """Median time of each candidate, without its first turns.

        Not the best: where ranks share cores, a plan of many steps is now and
        then lucky, and what counts is how it does on most calls.
        """
        n, burst = len(self.candidates), self._burst
        taken: list[list[float]] = [[] for _ in range(n)]
        for number, seconds in enumerate(agreed_s):
            if burst == 1 or number % burst >= FIRST:
                taken[number // burst % n].append(seconds)
        first = int(burst == 1 and self.races == 0)  # which finds no memory of its own yet
        return [median(samples[first:] or samples) for samples in taken]
