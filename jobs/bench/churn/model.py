"""An episode without processes: what the protocol promises, for the judge.

Hundreds run in a second.  Seats are given by the same `roster` as in a job.
"""

from __future__ import annotations

import random

from closeranks.collectives.faults.rank_assignment import Report, roster
from closeranks.jobs.bench.churn.events import Episode, Event, met, victims
from closeranks.jobs.bench.churn.parts import whole
from closeranks.jobs.bench.churn.record import Record

#: Where an event may find a member: before it has added its bits, before it has voted,
#: after the vote.
_MOMENTS = ("begin", "vote", "voted")


class Model:
    """The processes of an episode.

    Parameters
    ----------
    plan : Episode
        What happens.
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

    def _step(self, step: int, event: Event | None) -> None:
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
        """Let all members end a step; who dies after the vote writes nothing."""
        alive = tuple(sorted(self._members))
        sums = whole(alive, step, self._epoch)
        for seat in alive:
            if seat not in silent:
                self.records.append(Record(self._members[seat], step, self._epoch, seat, alive,
                                           len(self._spares), *sums, 0, 0, 0.0))  # fmt: skip

    def _recover(self, dead: set[int]) -> None:
        """Go on without them, with spares in their seats."""
        left = [(seat, name) for seat, name in sorted(self._members.items()) if seat not in dead]
        reports = [Report(seat) for seat, _ in left] + [Report(None)] * len(self._spares)
        names = [name for _, name in left] + self._spares
        seated = roster(reports, self._plan.members)
        self._members = {seat: names[rank] for rank, seat in seated.seat_of.items()}
        self._spares = [name for rank, name in enumerate(names) if rank not in seated.seat_of]
        self._epoch += 1
