"""An episode without processes: its schedule, and what the protocol promises.

`episode` makes the schedule: events, the seats that they meet, and the steps.
`Model` runs it for the judge, hundreds in a second.  `assign_seats` gives the
seats, as in a job.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from closeranks.collectives.faults.rank_assignment import ProcessReport, assign_seats
from closeranks.jobs.bench.churn.record import Record, whole

#: What may happen to a seat.
KINDS: Final = ("kill", "stop")
#: Fewer members are never left.
FEWEST: Final = 2
#: So many have a bit each in a word with a sign.
MOST: Final = 63
#: Steps between two events, at least and at most.
_GAP: Final = (8, 30)
#: How long after the step has begun it happens at most, seconds; a step takes about 1 ms.
_DELAY_S: Final = 2e-3
#: One event in so many meets two seats at once.
_DOUBLE: Final = 8


class ChurnEvent(NamedTuple):
    """One event of a schedule.

    Attributes
    ----------
    step : int
        During which step.
    kind : str
        Of `KINDS`.
    places : tuple of int
        Places among the members of that step that it meets, ascending.
    delay_s : float
        How long after the step has begun there.
    """

    step: int
    kind: str
    places: tuple[int, ...]
    delay_s: float


class Episode(NamedTuple):
    """An episode: its first members, and its events.

    Attributes
    ----------
    seed : int
        Of the schedule.
    members, spares : int
        Processes with a seat at the beginning, and without.
    events : tuple of ChurnEvent
        In the order of their steps.
    steps : int
        How many there are.
    """

    seed: int
    members: int
    spares: int
    events: tuple[ChurnEvent, ...]
    steps: int


def episode(seed: int, members: int, spares: int) -> Episode:
    """Write a schedule that uses up all spares and all members but two.

    Pure.

    Parameters
    ----------
    seed : int
        Another one is another schedule.
    members : int
        At least `FEWEST`.
    spares : int
        How many processes wait.

    Returns
    -------
    Episode
        Equal for equal arguments.
    """
    chance, step, left, waiting = random.Random(seed), 0, members, spares
    events = list[ChurnEvent]()
    while left + waiting > FEWEST:
        step += chance.randint(*_GAP)
        most = min(left - 1, left + waiting - FEWEST)
        number = 2 if most >= 2 and chance.randrange(_DOUBLE) == 0 else 1
        places = tuple(sorted(chance.sample(range(left), number)))
        kind, delay_s = chance.choice(KINDS), chance.uniform(0, _DELAY_S)
        events.append(ChurnEvent(step, kind, places, delay_s))
        taken = min(number, waiting)
        waiting, left = waiting - taken, left - number + taken
    return Episode(seed, members, spares, tuple(events), step + _GAP[0])


def met(events: Sequence[ChurnEvent], step: int) -> ChurnEvent | None:
    """Give the event of a step, if there is one.

    Parameters
    ----------
    events : sequence of ChurnEvent
        Of an episode.
    step : int
        Which step.

    Returns
    -------
    ChurnEvent or None
        At most one a step.
    """
    return next((event for event in events if event.step == step), None)


def victims(event: ChurnEvent, alive: Sequence[int], waiting: int) -> tuple[int, ...]:
    """Give the seats that an event meets, also where others have died before it.

    Places that are not there any more are left out.  So are places whose loss
    would leave fewer members than `FEWEST`.

    Parameters
    ----------
    event : ChurnEvent
        The event.
    alive : sequence of int
        Seats of the members.
    waiting : int
        How many spares are left.

    Returns
    -------
    tuple of int
        As planned where nobody has died without an event.
    """
    met_here = [alive[place] for place in event.places if place < len(alive)]
    most = min(len(alive) - 1, len(alive) + waiting - FEWEST)
    return tuple(met_here[: max(most, 0)])


#: Where an event may find a member: before it has added its bits, before it has voted,
#: after the vote.
_MOMENTS = ("begin", "vote", "voted")


class Model:
    """The processes of an episode.

    Parameters
    ----------
    plan : Episode
        The schedule.
    seed : int
        Decides in which moment of a step an event finds a member.
    """

    def __init__(self, plan: Episode, seed: int) -> None:
        self._plan, self._chance = plan, random.Random(seed)
        names = [f"p{number}" for number in range(plan.members + plan.spares)]
        self._members = dict(enumerate(names[: plan.members]))
        self._spares = names[plan.members :]
        self._epoch = 0
        self.records = list[Record]()

    def run(self) -> list[Record]:
        """Run it; gives all records."""
        for step in range(self._plan.steps):
            self._step(step, met(self._plan.events, step))
        return self.records

    def _step(self, step: int, event: ChurnEvent | None) -> None:
        """Repeat a step until all members have ended it together."""
        alive = tuple(sorted(self._members))
        struck = victims(event, alive, len(self._spares)) if event else ()
        moments = {seat: self._chance.choice(_MOMENTS) for seat in struck}
        dead = {seat for seat, moment in moments.items() if moment in ("begin", "vote")}
        if dead:
            self._recover(dead)
        late = set(moments) - dead
        self._write(step, silent=late)
        if late:
            self._recover(late)

    def _write(self, step: int, silent: set[int]) -> None:
        """Let all members end a step; the silent ones die after the vote."""
        alive = tuple(sorted(self._members))
        sums = whole(alive, step, self._epoch)
        for seat in alive:
            if seat not in silent:
                self.records.append(Record(self._members[seat], step, self._epoch, seat, alive,
                                           len(self._spares), *sums, 0, 0, 0.0))  # fmt: skip

    def _recover(self, dead: set[int]) -> None:
        """Go on without them, with spares in their seats."""
        left = [(seat, name) for seat, name in sorted(self._members.items()) if seat not in dead]
        reports = [ProcessReport(seat) for seat, _ in left] + [ProcessReport(None)] * len(
            self._spares
        )
        names = [name for _, name in left] + self._spares
        seated = assign_seats(reports, self._plan.members)
        self._members = {seat: names[rank] for rank, seat in seated.seat_of.items()}
        self._spares = [name for rank, name in enumerate(names) if rank not in seated.seat_of]
        self._epoch += 1
