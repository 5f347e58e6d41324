"""The ranks of a job as threads of one process, of which one runs at a time, drawn by a seed.

At every *point*, which are words to others and changes of files, a seed decides
who goes on, and whether somebody is killed.  A killed rank does nothing more:
what its own code would still clean up it leaves, as a process does that is gone.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from closeranks.errors import PeerLost

if TYPE_CHECKING:
    from tests.checkpoint.hearing import Channel

_HERE = threading.local()
#: How often somebody else goes on at a point where nobody has to wait.
_TURNS = 0.2
#: Points that ranks go on for, at most, when one of a job without faults has died.
_DYING = 30


class Killed(BaseException):
    """A rank is gone."""


class Stuck(AssertionError):
    """All ranks wait for each other."""


@dataclass(eq=False)
class Actor:
    """One rank on a stage.

    Attributes
    ----------
    number : int
        Its rank.
    fate : int or None
        Points until it is killed.
    where : str
        How the point begins at which it is killed then.
    trying : int
        What it does; whoever judges it gives numbers.
    is_full : bool
        Whether there is no room for files of its.
    """

    number: int
    stage: Stage
    fate: int | None = None
    where: str = ""
    what: str = "the beginning"
    ready: Callable[[], object] | None = None
    trying: int = 0
    is_full: bool = False
    is_done: bool = False
    is_dead: bool = False
    outcome: Any = None
    turn: Any = field(default_factory=threading.Lock)  # held but when it is its turn


class Stage:
    """Where ranks run until all have ended.

    Parameters
    ----------
    rng : Random
        Draws who goes on.
    faults : bool
        Whether others live on when one dies, and are told; else all die.

    Attributes
    ----------
    actors : list of Actor
        The ranks.
    dead : set of int
        Those that have been killed.
    deaths : Counter
        At which points.
    """

    def __init__(self, rng: Random, *, faults: bool) -> None:
        self.rng, self.faults = rng, faults
        self.actors: list[Actor] = []
        self.dead: set[int] = set()
        self.deaths: Counter[str] = Counter()
        self._stuck: str | None = None
        self._ended = threading.Event()
        self.channels: list[Channel] = []

    def play(
        self, parts: Sequence[Callable[[], Any]], fates: Sequence[int | None], where: str = ""
    ) -> list[Any]:
        """Run them; gives what each has returned or raised, `Killed` of those who died."""
        self.actors = [Actor(at, self, fate, where) for at, fate in enumerate(fates)]
        for actor in self.actors:
            actor.turn.acquire()
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})  # one runs at a time: no core need be woken
        for actor, part in zip(self.actors, parts, strict=True):
            threading.Thread(target=self._run, args=(actor, part), daemon=True).start()
        os.sched_setaffinity(0, cores)
        self.rng.choice(self.actors).turn.release()
        if not self._ended.wait(60):
            raise Stuck(f"no end after 60 s; {self.places()}")
        if self._stuck:
            raise Stuck(self._stuck)
        if not self.dead:
            assert not any(channel.left() for channel in self.channels), "nobody has received"
        return [actor.outcome for actor in self.actors]

    def places(self) -> str:
        """Tell where all are."""
        where = {actor.number: f"ended with {actor.outcome!r}" if actor.is_done else actor.what
                 for actor in self.actors}  # fmt: skip
        return "; ".join(f"rank {rank}: {what}" for rank, what in where.items())

    def wait(self, actor: Actor, ready: Callable[[], object], what: str) -> None:
        """Let others go on until something is so."""
        self.point(actor, what)
        actor.ready = ready
        while not ready():
            self._switch(actor)
        actor.ready = None
        self.point(actor, what + " done")

    def point(self, actor: Actor, what: str) -> None:
        """Let others go on, perhaps; die, if it is time."""
        self.strike(actor, what)
        if self.rng.random() < _TURNS:
            self._switch(actor)

    def strike(self, actor: Actor, what: str) -> None:
        """Die, if it is time."""
        actor.what = what
        if actor.is_dead:
            raise Killed(what)
        if actor.fate is not None:
            actor.fate -= 1
            if actor.fate < 0 and what.startswith(actor.where):
                self._die(actor)

    def _die(self, actor: Actor) -> None:
        """End a rank, and soon the others where nobody lives without it."""
        actor.is_dead = True
        self.dead.add(actor.number)
        self.deaths[actor.what.split(" ")[0]] += 1
        if not self.faults:
            for other in self.actors:
                soon = self.rng.randrange(_DYING)
                other.fate = soon if other.fate is None else min(soon, other.fate)
                other.where = ""
        raise Killed(actor.what)

    def lost(self, actor: Actor) -> BaseException:
        """Give what a rank meets that waits for the dead."""
        if not self.faults:
            actor.is_dead = True
            return Killed("waiting")
        return PeerLost("checkpoint", self.dead)

    def _run(self, actor: Actor, part: Callable[[], Any]) -> None:
        """Run one rank to its end."""
        actor.turn.acquire()
        _HERE.actor = actor
        try:
            actor.outcome = part()
        except Killed as error:
            actor.is_dead = True
            self.dead.add(actor.number)
            actor.outcome = error
        except BaseException as error:
            actor.outcome = error
        actor.is_done = True
        self._go_on(None)

    def _switch(self, actor: Actor) -> None:
        """Let somebody go on, perhaps oneself."""
        if self._go_on(actor):
            return
        actor.turn.acquire()
        if self._stuck:
            raise Stuck(self._stuck)

    def _go_on(self, actor: Actor | None) -> bool:
        """Wake one who can go on; tells whether it is the caller."""
        left = [one for one in self.actors if not one.is_done]
        able = [one for one in left if one.ready is None or one.ready()]
        if not left:
            self._ended.set()
            return False
        if not able or self._stuck:
            self._stuck = self._stuck or f"all wait: {self.places()}"
            able = [one for one in left if one is not actor] or left
        chosen = self.rng.choice(able)
        if chosen is actor:
            if self._stuck:
                raise Stuck(self._stuck)
            return True
        chosen.turn.release()
        return False


def acting() -> Actor | None:
    """Give the rank that runs in this thread, None in others."""
    return getattr(_HERE, "actor", None)


def here() -> Actor:
    """Give the rank that runs in this thread."""
    found = acting()
    assert found is not None
    return found
