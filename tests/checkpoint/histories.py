"""Jobs that save, die, lose memory and come back, as a seed draws them.

A *history* is some launches of one job, or recoveries in it.  In each the ranks
restore, and save a few times.  Some are killed, file systems are full, nodes
and slots are lost, damaged and forged in between, and nodes come back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from closeranks.checkpoint import Checkpointer
from closeranks.errors import CheckpointError, PeerError, TooManyErasures
from tests.checkpoint import mishaps
from tests.checkpoint.hearing import Company
from tests.checkpoint.ledger import NAME, Ledger, States, Try
from tests.checkpoint.stage import Killed, Stage, here

#: Points that are rare, and worth dying at.
WHERE = ("across", "move", "_compute", "reserve", "put", "gather", "pwrite", "fsync", "replace")


@dataclass
class Launch:
    """One launch of the job, or what goes on of it after a recovery.

    Attributes
    ----------
    number, epoch : int
        Which; the epoch is not 0 where it goes on.
    nodes : tuple of int
        Rank -> its node.
    places : tuple of int
        Node -> which folder is its memory.
    faults : bool
        Whether ranks live on when one dies.
    saves : int
        How many.
    fates : list of int or None
        Points until each rank dies.
    where : str
        How the point begins at which it does.
    full : int or None
        In which save there is no room on some ranks; 0 for the restore.
    ending : str
        "keep", "leave", or "look": also look at all check sums.
    """

    number: int
    epoch: int
    nodes: tuple[int, ...]
    places: tuple[int, ...]
    faults: bool
    saves: int
    fates: list[int | None]
    where: str
    full: int | None
    ending: str


@dataclass
class Rank:
    """A process of the job."""

    comm: Company
    keeper: Checkpointer


@dataclass
class History:
    """All that happens to a job.

    Parameters
    ----------
    seed : int
        Draws it.
    root : Path
        For the nodes' memory.

    Attributes
    ----------
    met : Counter
        How often what has happened.
    told : list of str
        For who reads why it went wrong.
    """

    seed: int
    root: Path
    met: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = rng = Random(self.seed)
        self._parity, self._keep = rng.choice((1, 1, 2, 3)), rng.choice((2, 2, 3))
        self._group = rng.choice((None, None, self._parity + rng.randrange(1, 5)))
        self._every = rng.choice((None, None, None, 1, 2))  # of how many saves one goes to disk
        self._states = States(rng)
        self._ledger = Ledger(self._parity, self._keep)
        self._folders = [self.root / str(number) for number in range(6)]
        self._alive: list[Rank | None] = []

    def run(self, patch: pytest.MonkeyPatch) -> None:
        """Live it."""
        self.met["histories"] += 1
        self._ledger.listen(patch)
        for folder in self._folders:
            folder.mkdir()
        last: Launch | None = None
        for left in reversed(range(self._rng.choice((2, 2, 3)))):
            last = self._next(last, is_last=not left)
            self._play(last)
            self._mishaps(last)

    # What is going to happen.

    def _next(self, last: Launch | None, *, is_last: bool) -> Launch:
        """Draw a launch, or how the job goes on."""
        rng, number = self._rng, 1 if last is None else last.number + 1
        epoch = 0
        if last is not None and last.faults and any(self._alive) and not all(self._alive):
            epoch = last.epoch + 1
            nodes, places = self._survivors(last)
        else:
            self._alive = []
            nodes = self._nodes(last)
            places = self._places(last, max(nodes) + 1)
        fates, faults = self._fates(len(nodes), epoch, nobody=is_last)
        full = rng.randrange(3) if rng.random() < 0.15 else None
        ending = rng.choice(("keep", "keep", "keep", "keep", "look", "leave"))
        saves = rng.choice((1, 1, 1, 2, 3)) if not is_last else 1
        where = rng.choice(WHERE) if rng.random() < 0.4 else ""
        if where == "across":  # restores alone come there, and soon
            fates = [fate and fate % 9 for fate in fates]
        made = Launch(number, epoch, nodes, places, faults, saves, fates, where, full, ending)
        self.told.append(f"{made}, {self._ledger.floor()} must come back")
        return made

    def _nodes(self, last: Launch | None) -> tuple[int, ...]:
        """Draw which ranks are where: mostly as many as before, in any order."""
        rng = self._rng
        if last is not None and (kept := rng.random()) < 0.7:
            return last.nodes if kept < 0.3 else tuple(rng.sample(last.nodes, len(last.nodes)))
        size = rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 8))
        count = rng.randrange(1, min(4, size) + 1)
        drawn = [*range(count), *(rng.randrange(count) for _ in range(size - count))]
        return tuple(rng.sample(drawn, size))

    def _places(self, last: Launch | None, count: int) -> tuple[int, ...]:
        """Draw the folders of the nodes: mostly those of before, in any order."""
        rng, before = self._rng, last.places if last else ()
        places = list(before) if rng.random() < 0.5 else rng.sample(before, len(before))
        if rng.random() < 0.15 and len(places) > 1:
            places.pop()
        others = [place for place in range(len(self._folders)) if place not in places]
        places += rng.sample(others, max(0, count - len(places)))
        return self._left(last, tuple(places[:count]))

    def _left(self, last: Launch | None, places: tuple[int, ...]) -> tuple[int, ...]:
        """Note which nodes are not of the job any more."""
        for place in sorted(set(last.places if last else ()) - set(places)):
            self.met["a node left"] += 1
            self._ledger.leave(self._folders[place])
        return places

    def _survivors(self, last: Launch) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Draw who goes on: those who are left, or others on the seats of the dead too."""
        if self._rng.random() < 0.5:
            self.met["replaced"] += 1
            dead = {last.nodes[at] for at, rank in enumerate(self._alive) if rank is None}
            left = {last.nodes[at] for at, rank in enumerate(self._alive) if rank is not None}
            places = list(last.places)
            for node in sorted(dead - left):  # their place is taken by another machine
                others = set(range(len(self._folders))) - set(places)
                places[node] = self._rng.choice(sorted(others))
            return last.nodes, self._left(last, tuple(places))
        self.met["shrunk"] += 1
        nodes = [last.nodes[at] for at, rank in enumerate(self._alive) if rank is not None]
        self._alive = [rank for rank in self._alive if rank is not None]
        known = sorted(set(nodes))
        places = [last.places[node] for node in known]
        return tuple(known.index(node) for node in nodes), self._left(last, tuple(places))

    def _fates(self, size: int, epoch: int, *, nobody: bool) -> tuple[list[int | None], bool]:
        """Draw who dies when, and whether others live on."""
        rng = self._rng
        fates: list[int | None] = [None] * size
        drawn = rng.random()
        if drawn < 0.8 and not nobody:
            dying = (
                range(size)
                if drawn < 0.3
                else rng.sample(range(size), min(size, rng.choice((1, 1, 2))))
            )
            when = rng.randrange(rng.choice((60, 200, 400)))
            for rank in dying:
                fates[rank] = when + rng.randrange(10)
        return fates, epoch > 0 or 0.3 <= drawn < 0.65

    # What happens.

    def _play(self, launch: Launch) -> None:
        """Let a launch run, and judge it."""
        size = len(launch.nodes)
        stage = Stage(self._rng, faults=launch.faults)
        before = self._alive or [None] * size
        ranks = [self._rank(stage, launch, at, before[at]) for at in range(size)]
        into = len({of.size for of in self._ledger.tries.values()} - {size}) > 0
        parts = [
            partial(_Part(self, launch, rank.keeper, into).run, at) for at, rank in enumerate(ranks)
        ]
        said = stage.play(parts, launch.fates, launch.where)
        self.met.update({f"died at {what}": count for what, count in stage.deaths.items()})
        for one in said:
            if isinstance(one, BaseException) and not isinstance(one, (Killed, PeerError)):
                raise one
        told = {one for one in said if not isinstance(one, BaseException)}
        assert len(told) <= 1, f"ranks have got back different things: {said}"
        alive = [None if actor.is_dead else rank
                 for actor, rank in zip(stage.actors, ranks, strict=True)]  # fmt: skip
        self._alive = alive if launch.faults and stage.dead else []

    def _rank(self, stage: Stage, launch: Launch, at: int, before: Rank | None) -> Rank:
        """Give a process: one that lives on, or a new one."""
        if before is not None:
            before.comm.join(stage, at, launch.nodes, launch.epoch)
            return before
        comm = Company(stage, at, launch.nodes, launch.epoch)
        directory = self._folders[launch.places[launch.nodes[at]]]
        keeper = Checkpointer(
            comm, name=NAME, parity=self._parity, group=self._group,  # type: ignore[arg-type]
            keep=self._keep, directory=directory, chunk_bytes=4096,
            persist=self.root / "disk" if self._every else None, persist_every=self._every,
        )  # fmt: skip
        return Rank(comm, keeper)

    def _mishaps(self, launch: Launch) -> None:
        """Let things happen to what is in memory."""
        rng = self._rng
        for _ in range(rng.choice((0, 1, 1, 2))):
            how = rng.choice((*mishaps.MISHAPS, "node"))
            self.met[how] += 1
            roots = [self._folders[place] for place in launch.places]
            if how == "node":
                members = set(range(99))
                roots = [rng.choice(roots)]
            elif rng.random() < 0.7:  # no more than is tolerated, if it happens once
                members = {rng.randrange(4) for _ in range(rng.randrange(1, self._parity + 1))}
            else:
                members = {rng.randrange(8) for _ in range(4)}
            self.told.append(
                f"{how} of members {sorted(members)[:8]} in {[root.name for root in roots]}"
            )
            for root in roots:
                for path in self._ledger.hurt(root, lambda head: head.share.member in members):  # noqa: B023
                    if how != "node":
                        mishaps.hurt(path, how, rng)
                if how == "node":
                    mishaps.lose(root)


class _Part:
    """What a rank does in a launch.

    Parameters
    ----------
    history : History
        Of the job.
    launch : Launch
        Which.
    keeper : Checkpointer
        The rank's.
    into : bool
        Whether it asks for what any number of ranks may have saved.
    """

    def __init__(self, history: History, launch: Launch, keeper: Checkpointer, into: bool) -> None:
        self._history, self._launch, self._keeper, self._into = history, launch, keeper, into
        self._ledger, self._states = history._ledger, history._states
        self._floor = self._ledger.floor()
        roots = [history._folders[place] for place in launch.places]
        self._visible = self._ledger.visible(roots)

    def run(self, rank: int) -> Any:
        """Do it; gives what came back, and what else was said of it."""
        self._rank, launch, keeper = rank, self._launch, self._keeper
        here().is_full = launch.full == 0
        said = self._restore()
        if said == "no room":
            here().is_full = False
            said = self._restore()
        step = self._ledger.tries[said[0]].step if isinstance(said, tuple) else 0
        committed = []
        for count in range(launch.saves):
            here().is_full = launch.full == count + 1 and rank % 2 == 0
            committed.append(self._save(10 * launch.number + count, step + 1 + count))
            here().is_full = False
        if launch.ending == "look" and committed[-1]:
            assert keeper.verify()[step + launch.saves].startswith("whole")
        if launch.ending != "leave" and not launch.faults:  # else it is gone, as it is
            keeper.close(keep=True)
        return said

    def _restore(self) -> Any:
        """Restore, and judge it."""
        rank, size, met = self._rank, len(self._launch.nodes), self._history.met
        problem: Exception | None = None
        found = None
        try:
            into = self._states.wanted(rank, size) if self._into else None
            found = self._keeper.restore(into=into)
        except (CheckpointError, TooManyErasures) as error:
            problem = error
        if here().is_full and "bytes wanted" in str(problem):
            met["no room to restore"] += not rank
            return "no room"
        if found is None:
            assert self._floor is None, f"{self._floor} must come back: {problem}"
            met[type(problem).__name__] += not rank
            return str(problem)
        number = found[1]["number"]
        of = self._ledger.tries[number]
        assert found[0] == of.step
        self._states.check(found[1], number, of.size if self._into else 0, rank, size)
        self._judge(number)
        self._ledger.restored(number)
        met["restored"] += not rank
        met["restored what nobody was told of"] += not rank and number != self._floor
        met["restored by others"] += not rank and of.size != size
        return number, self._keeper.skipped

    def _judge(self, number: int) -> None:
        """Tell whether a save may come back, and whether it is said why no later one did."""
        skipped, floor = self._keeper.skipped, self._floor
        late = floor is None or number >= floor or number in self._ledger.strays
        assert late, f"{number} came back, not {floor}; skipped {skipped}"
        for other, run in self._visible.items():
            if other > number and run == self._visible.get(number):
                step = self._ledger.tries[other].step
                assert any(f"step {step}: " in text for text in skipped), (other, skipped)

    def _save(self, number: int, step: int) -> bool:
        """Save, and note what became of it; tells whether all have it."""
        rank, size, launch = self._rank, len(self._launch.nodes), self._launch
        here().trying = number
        self._ledger.begin(Try(number, step, size, launch.number))
        problem: Exception | None = None
        try:
            pending = self._keeper.save(step, self._states.of(number, rank, size))
            pending.committed.wait(10)
        except CheckpointError as error:
            problem = error
        if problem is None:
            self._ledger.commit(number)
            self._history.met["committed"] += not rank
            if pending.persisted.done() and pending.persisted.error is None:
                self._ledger.on_disk = number
                self._history.met["on disk"] += not rank
            return True
        assert launch.full, problem
        assert "bytes wanted" in str(problem), problem
        self._history.met["no room to save"] += not rank
        return False
