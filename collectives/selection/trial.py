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
#: that a kernel goes round in is not warm before, and the library gets no later trial.
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
#: A plan that won is looked at again after so many calls, then after ten times as
#: many, and so on: the machine may have changed.
AGAIN = 100


@dataclass
class Trial:
    """Measures candidates in turn on the first calls of a kind.

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
    served : int
        Calls since a plan has won.
    again : int
        Calls after which it meets the library, and close candidates, again.
    """

    candidates: tuple[str, ...]
    rounds: int = 3
    races: int = 0
    samples: list[float] = field(default_factory=list)
    winner: str | None = None
    agreed_s: dict[str, float] = field(default_factory=dict)
    served: int = 0
    again: int = AGAIN

    def __post_init__(self) -> None:
        self._first_rounds, self._safe = self.rounds, self.candidates[-1]

    def serve(self) -> None:
        """Count a call that a plan serves; now and then it must win again."""
        assert self.winner is not None
        self.served += 1
        if self.served == self.again:
            near_s = self.agreed_s[self.winner] / CLOSE
            close = (name for name, seconds in self.agreed_s.items() if seconds <= near_s)
            plans = dict.fromkeys(name for name in (self.winner, *close) if name != self._safe)
            self.served, self.again = 0, 10 * self.again
            if plans:  # else nothing comes near the safe choice
                self._meet((*plans, self._safe), self._first_rounds, races=0)
                self.winner = None

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
        plans = [name for name in self.candidates if name != self._safe]
        first = min(plans, key=lambda name: self.agreed_s[name])
        share = self.agreed_s[first] / max(self.agreed_s[self._safe], 1e-9)
        wins = share < (CLEAR if self.again == AGAIN else STAYS)
        rivals: tuple[str, ...] = ()
        if self.races == 0:
            rivals = self._rivals(plans, first, share)
        elif self.races < RACES - 1 and self._first_rounds >= SHORT:
            rivals = () if wins or share > 1 / CLOSE else (first, self._safe)
        if len(rivals) > 1:
            rounds = FINAL * self.rounds if self.rounds > 1 else REPLAY
            self._meet(rivals, rounds, races=self.races + 1)
            return None
        self.winner = first if wins else self._safe
        return self.winner

    def _rivals(self, plans: Sequence[str], first: str, share: float) -> tuple[str, ...]:
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
