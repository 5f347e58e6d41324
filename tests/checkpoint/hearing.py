"""What ranks of a stage say to each other: it takes the place of `ControlChannel`.

As bad as a library may be: messages are read when they are sent or when they
arrive, an operation ends well on some ranks and not on others when somebody
dies, or says that all went well.  All ranks must do the same in the same order.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.comms.topology.topology import Topology
from closeranks.errors import PeerLost
from tests.checkpoint.stage import Stage, here


@dataclass
class Channel:
    """What the duplicates of one communicator have in common."""

    met: dict[int, dict[int, Any]] = field(default_factory=dict)
    mail: dict[tuple[int, int], deque[Letter]] = field(default_factory=dict)
    awaited: dict[tuple[int, int], deque[Letter]] = field(default_factory=dict)

    def post(self, way: tuple[int, int], letter: Letter, *, is_send: bool) -> None:
        """Bring a message and who waits for it together."""
        mine, other = (self.mail, self.awaited) if is_send else (self.awaited, self.mail)
        if not other.get(way):
            mine.setdefault(way, deque()).append(letter)
            return
        match = other[way].popleft()
        sent, received = (letter, match) if is_send else (match, letter)
        assert sent.data.size == received.data.size, "a message of another length"
        received.data[:] = sent.data
        sent.is_there = received.is_there = True

    def left(self) -> bool:
        """Whether there are messages that nobody has taken, or that nobody has sent."""
        return any(self.mail.values()) or any(self.awaited.values())


@dataclass(eq=False)
class Letter:
    """A message on its way, or room for one."""

    data: Any
    is_there: bool = False


class Unsteady:
    """When ranks leave the wire to others: each at times of its own."""

    def yields(self) -> bool:
        return here().stage.rng.random() < 0.3

    def rest(self, took_s: float) -> None:
        del took_s
        here().stage.point(here(), "rest")


class Company:
    """What a rank knows of the others: it takes the place of a communicator."""

    checks, threaded = False, False

    def __init__(self, stage: Stage, rank: int, nodes: Sequence[int], epoch: int) -> None:
        self.join(stage, rank, nodes, epoch)

    def join(self, stage: Stage, rank: int, nodes: Sequence[int], epoch: int) -> None:
        """Begin another epoch."""
        self.stage, self.rank, self.size, self.epoch = stage, rank, len(nodes), epoch
        self.hierarchy = Topology.from_groups(("node", "rank"), [list(nodes), range(len(nodes))])
        self._talks = 0

    def statistics(self) -> Any:
        """Count the calls of the program: there are none."""
        return SimpleNamespace(calls={})

    def explained(self, operation: str, error: Exception) -> BaseException:
        """Give what is raised for what the library says of a rank that has died."""
        del operation, error
        return self.stage.lost(here())

    def channel(self) -> Channel:
        """Give what the talks that are made next have in common."""
        self._talks, channels = self._talks + 1, self.stage.channels
        if len(channels) < self._talks:
            channels.append(Channel())
        return channels[self._talks - 1]


class Hearing(ControlChannel):
    """What ranks of a stage say to each other."""

    def __init__(self, comm: Any) -> None:
        self._comm, self.epoch = comm, comm.epoch
        self.rank, self.size, self._stage = comm.rank, comm.size, comm.stage
        self._channel, self._count = comm.channel(), 0
        self._meet("meeting", None)

    def _meet(self, kind: str, value: Any) -> list[Any]:
        """Wait until all have come to the same place; gives what each has brought."""
        heard = self._channel.met.setdefault(self._count, {})
        heard[self.rank] = (kind, value)
        self._count += 1
        stage = self._stage

        def all_there() -> bool:
            return len(heard) == self.size

        stage.wait(here(), lambda: all_there() or stage.dead, f"{kind} {self._count}")
        kinds = {kind for kind, _ in heard.values()}
        assert len(kinds) == 1 or stage.dead, f"ranks do not do the same: {heard}"
        # Where somebody dies an operation may end well on some, and not on others.
        if not all_there() or len(kinds) > 1 or (stage.dead and stage.rng.random() < 0.5):
            raise stage.lost(here())
        return [heard[rank][1] for rank in range(self.size)]

    def least(self, values: Any) -> Any:
        own = np.array(values, np.int64)
        try:
            return np.min(self._meet(f"least-of-{own.size}", own), axis=0)
        except PeerLost:
            if self._stage.rng.random() < 0.2:  # a library may say that all went well
                return np.full_like(own, np.iinfo(np.int64).min)
            raise

    def gather(self, values: Any) -> Any:
        own = np.array(values)
        return np.stack(self._meet(f"gather-of-{own.size}-{own.dtype}", own.reshape(-1)))

    def everything(self, mine: object) -> list[Any]:
        return [json.loads(text) for text in self._meet("everything", json.dumps(mine))]

    def across(self, values: Any) -> Any:
        own = np.array(values, np.int64)
        assert own.size == self.size
        return np.array([of[self.rank] for of in self._meet("across", own)], np.int64)

    def move(self, sends: Any, receives: Any) -> Callable[[], None]:
        stage, letters = self._stage, []
        stage.point(here(), "move")
        for rank, data in receives:
            letters.append(Letter(data))
            self._channel.post((rank, self.rank), letters[-1], is_send=False)
        for rank, data in sends:
            # The library may read at once, or much later; only then does the sender wait.
            is_early = stage.rng.random() < 0.5
            letter = Letter(data.copy() if is_early else data)
            self._channel.post((self.rank, rank), letter, is_send=True)
            letters += [] if is_early else [letter]
        left = deque(letters)

        def all_there() -> bool:
            while left and left[0].is_there:
                left.popleft()
            return not left

        def finish() -> None:
            stage.wait(here(), lambda: all_there() or stage.dead, "moved")
            if not all_there():
                raise stage.lost(here())

        return finish

    def pace(self, is_awaited: Callable[[], bool]) -> Any:
        del is_awaited
        return Unsteady()

    def close(self) -> None:
        if not self._stage.dead:
            with suppress(PeerLost):
                self._meet("close", None)
