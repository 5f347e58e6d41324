"""Attendance over messages of one process: who asks whom, and how many words that takes."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.collectives.engine import late_ranks
from closeranks.collectives.engine.error_translation import verdict
from closeranks.collectives.engine.late_ranks import Attendance, Lateness, LateRankListener
from closeranks.comms.liveness.failure_notices import Notices
from closeranks.comms.mpi import ulfm
from closeranks.comms.wait import Deadline
from closeranks.errors import PeerLate, Revoked

LIMIT_S = 0.1
TICK_S = 1e-3
#: Ticks between two looks of the thread of a rank that computes.
PAUSE = 20


@dataclass
class Sent:
    """A request; counts who asks whether it is over."""

    net: Net

    def Get_status(self) -> bool:
        self.net.looks += 1
        return self.net.takes

    def Test(self) -> bool:
        return True


@dataclass
class Wire:
    """The end of one rank: what is sent arrives a tick later."""

    rank: int
    size: int
    net: Net
    inbox: deque[tuple[float, int, Any]] = field(default_factory=deque)

    def Iprobe(self, source: int, tag: int, status: MPI.Status) -> bool:  # noqa: ARG002
        if not self.inbox or self.inbox[0][0] > self.net.now_s:
            return False
        status.Set_source(self.inbox[0][1])
        status.Set_elements(MPI.INT64_T, self.inbox[0][2].size)
        return True

    def Recv(self, words: Any, source: int, tag: int) -> None:  # noqa: ARG002
        words[:] = self.inbox.popleft()[2]

    def Isend(self, words: Any, rank: int, tag: int) -> Sent:  # noqa: ARG002
        self.net.sent[int(words[0])] += 1
        if self.rank not in self.net.deaf:
            arrives_s = self.net.now_s + TICK_S
            self.net.ends[rank].inbox.append((arrives_s, self.rank, np.array(words)))
        return Sent(self.net)


class Clock(Deadline):
    """A deadline by the net's clock."""

    def __init__(self, net: Net, limit_s: float = LIMIT_S) -> None:
        self.net, self.limit_s, self.began_s = net, limit_s, net.now_s

    @property
    def expired(self) -> bool:
        return self.waited_s >= self.limit_s

    @property
    def waited_s(self) -> float:
        return self.net.now_s - self.began_s


class Net:
    """Ranks of one process, each with a look a tick, or so.

    Ranks in ``deaf`` neither look nor are heard.
    """

    def __init__(self, size: int) -> None:
        self.now_s, self.sent = 0.0, Counter[int]()
        self.looks, self.takes = 0, True
        self.deaf: set[int] = set()
        self.ends = [Wire(rank, size, self) for rank in range(size)]
        self.attendances = [
            Attendance(cast("MPI.Intracomm", end), 1, lambda: None) for end in self.ends
        ]
        self.told: dict[int, tuple[float, Lateness]] = {}

    def monotonic(self) -> float:
        return self.now_s

    def tick(self, waiting: dict[int, tuple[int, Clock]]) -> None:
        """Let a tick pass."""
        self.now_s += TICK_S
        for rank, attendance in enumerate(self.attendances):
            if rank in self.deaf or rank in self.told:
                continue
            found = None
            if rank in waiting:
                found = attendance.missed(*waiting[rank])
            elif round(self.now_s / TICK_S) % PAUSE == rank % PAUSE:
                attendance.look()
            if found is not None:
                self.told[rank] = self.now_s, found

    def wait(
        self,
        turn: int,
        late: set[int],
        *,
        dies: dict[int, float] | None = None,
        limits_s: dict[int, float] | None = None,
    ) -> None:
        """Let all others enter a collective, and wait until their patience is over."""
        there = [rank for rank in range(len(self.attendances)) if rank not in late | self.deaf]
        waiting = {rank: (turn, Clock(self, (limits_s or {}).get(rank, LIMIT_S))) for rank in there}
        assert {self.attendances[rank].enter() for rank in there} == {turn}
        began_s = self.now_s
        while len(self.told) < len(set(there) - self.deaf) and self.now_s < began_s + 3:
            self.tick(waiting)
            for rank, after_s in (dies or {}).items():
                if self.now_s - began_s >= LIMIT_S + after_s:
                    self.deaf.add(rank)

    def verdict(self) -> tuple[set[tuple[int, ...]], float]:
        """Give all that ranks were told, and how long the last one has waited."""
        told = [found for _, found in self.told.values()]
        return {found.ranks for found in told}, max(at_s for at_s, _ in self.told.values())


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make nets whose clock is that of the ranks."""

    def made(size: int) -> Net:
        late_rank_listener = LateRankListener()
        late_rank_listener.stop()  # all looks are the net's
        monkeypatch.setattr(late_ranks, "late_rank_listener", lambda: late_rank_listener)
        one = Net(size)
        monkeypatch.setattr(late_ranks, "time", one)
        monkeypatch.setattr(ulfm, "is_on", lambda: False)
        return one

    return made


ALONE = 3 * 299


@pytest.mark.parametrize("late", [{0}, {7, 8}, {299}, set(range(150)), set(range(299))])
def test_one_asks_and_all_name_the_same(net: Any, late: set[int]) -> None:
    ranks = net(300)
    ranks.wait(0, late)
    told, took_s = ranks.verdict()
    assert told == {tuple(sorted(late))}
    assert took_s < LIMIT_S + 0.25, "all answer"
    assert ranks.sent.total() <= 4 * ALONE


@pytest.mark.parametrize("silent", [{0}, {1, 2}, {0, 1, 299}, set(range(100))])
def test_a_silent_rank_does_not_let_all_ask_all(net: Any, silent: set[int]) -> None:
    ranks = net(300)
    ranks.deaf |= silent
    ranks.wait(0, {20})
    told, took_s = ranks.verdict()
    assert told == {tuple(sorted({20} | silent))}
    assert took_s < LIMIT_S + 0.7
    assert ranks.sent.total() <= 4 * ALONE


@pytest.mark.parametrize(
    ("dies", "times"), [({0: 0.003}, 8), ({0: 0.3, 1: 0.003}, 8), ({0: 0.003, 1: 0.6}, 300)]
)
def test_who_stops_after_asking_is_named_too(net: Any, dies: dict[int, float], times: int) -> None:
    """All ask all only if a second one stops that has asked."""
    ranks = net(300)
    ranks.deaf.add(9)
    ranks.wait(0, {20}, dies=dies)
    told, took_s = ranks.verdict()
    assert told == {tuple(sorted({9, 20} | dies.keys()))}
    assert took_s < LIMIT_S + 1
    assert ranks.sent.total() <= times * ALONE


@pytest.mark.parametrize("seed", range(20))
def test_all_know_in_time_whenever_their_patience_ends(net: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 12))
    absent = {int(rank) for rank in random.permutation(size)[: random.integers(1, size)]}
    ranks = net(size)
    ranks.deaf |= {rank for rank in absent if random.random() < 0.5}
    limits_s = dict(enumerate(random.uniform(0.1, 0.8, size).tolist()))
    ranks.wait(0, absent, limits_s=limits_s)
    told, _ = ranks.verdict()
    assert told == {tuple(sorted(absent))}
    assert all(at_s < limits_s[rank] + 1 for rank, (at_s, _) in ranks.told.items()
               if rank not in absent)  # fmt: skip


def test_what_is_made_while_a_world_answers_answers_too(net: Any) -> None:
    ranks = net(1)
    old, wire = ranks.attendances[0], cast("MPI.Intracomm", ranks.ends[0])
    late_rank_listener = late_ranks.late_rank_listener()
    Attendance(wire, 1, lambda: None)
    busy = [late_rank_listener.is_busy]
    old.enter()
    new = Attendance(wire, 1, lambda: None)
    for one in (old, new):
        one.close()
        busy.append(late_rank_listener.is_busy)
    assert busy == [False, True, False]


def test_a_call_is_of_one_collective(net: Any) -> None:
    """The last of three comes when it has been asked already, and all ends well."""
    ranks = net(3)
    ranks.deaf.add(2)
    first = {rank: (ranks.attendances[rank].enter(), Clock(ranks)) for rank in (0, 1)}
    while ranks.now_s < LIMIT_S + 0.25:
        ranks.tick(first)
    ranks.deaf.clear()
    assert ranks.attendances[2].enter() == 0
    ranks.wait(1, {1})
    assert ranks.verdict()[0] == {(1,)}


def test_what_was_sent_is_not_looked_at_for_every_message(net: Any) -> None:
    ranks = net(1000)
    ranks.takes = False  # nothing ever gets through, as far as a sender knows
    ranks.wait(0, {999})
    assert ranks.looks <= 2 * ranks.sent.total()


@pytest.mark.parametrize("seats", [(0, 2), (0, 1)])
def test_who_is_late_is_named_by_a_call_whose_ranks_they_are(net: Any, seats: Any) -> None:
    """Rank 2 of the first of a family is late, and rank 0 hears of it on a derived one."""
    ranks = net(3)
    wires = [cast("MPI.Intracomm", end) for end in ranks.ends]
    first, own = ranks.attendances[0], Attendance(wires[0], 2, lambda: None)
    ranks.ends[1].Isend(np.array([late_ranks._LATE, 100_000, 100_000, 2]), 0, 1)
    ranks.now_s += TICK_S
    assert first.look()
    whole: Any = SimpleNamespace(attendance=first, seats=(0, 1, 2), revoked=True, notices=Notices())
    whole.seats_lost = tuple
    world: Any = SimpleNamespace(attendance=own, seats=seats, notices=Notices())
    met = verdict(world, whole, "barrier")
    assert own.told, "there the next call is refused"
    if 2 in seats:
        assert isinstance(met, PeerLate)
        assert met.ranks == (1,)
        assert first.told
        return
    assert isinstance(met, Revoked)
    assert not first.told
    named = verdict(whole, whole, "barrier")
    assert isinstance(named, PeerLate)
    assert named.ranks == (2,)
