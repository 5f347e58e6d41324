"""What becomes of the messages of a state whose call fails, on ranks that are made up."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.plans import message_tags
from closeranks.collectives.plans.schedule import Kind
from closeranks.collectives.replicated.leaf_transfer import Expected, Transfer
from closeranks.comms.topology.topology import Topology


class Message:
    """A request that is over when the test says so."""

    def __init__(self) -> None:
        self.is_over = self.is_cancelled = False

    def Test(self) -> bool:
        return self.is_over

    Get_status = Test

    def Cancel(self) -> None:
        self.is_cancelled = True


class Ranks:
    """A world of two ranks, and its traffic."""

    rank, epoch, window, topology, revoked = 0, 0, 2, Topology.regular(rank=2), False

    def __init__(self) -> None:
        self.traffic = self
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.buffers: list[weakref.ref[Any]] = []

    def check(self, operation: str) -> None:
        assert operation == "synchronize"

    def look(self) -> None: ...

    def revoke(self) -> None:
        self.revoked = True

    def Isend(self, piece: Any, target: int, tag: int) -> Message:
        return self._posted(self.sent, piece, target, tag)

    def Irecv(self, piece: Any, source: int, tag: int) -> Message:
        return self._posted(self.received, piece, source, tag)

    def _posted(self, into: list[Message], piece: Any, other: int, tag: int) -> Message:
        assert (other, tag) == (1, message_tags.state(self.window))
        self.buffers.append(weakref.ref(piece.base))
        into.append(Message())
        return into[-1]


def fail(ranks: Any) -> None:
    """Begin to give two arrays and to receive one, and meet an error."""
    given = ((1, np.ones(size, np.uint8)) for size in (3, 4))
    transfer = Transfer(ranks, given, [Expected(1, 5), Expected(1, 6)], None)
    with pytest.raises(MemoryError), transfer:
        raise MemoryError
    assert transfer.peers(Kind.RECEIVE) == transfer.peers(Kind.SEND) == (1,)
    assert transfer.awaited() == (1,)


def kept(ranks: Ranks) -> list[bool]:
    """Let the engine look again; tell which buffers are there still."""
    for _ in range(40):
        engine().progress()
    gc.collect()
    return [buffer() is not None for buffer in ranks.buffers]


def test_buffers_are_kept_until_the_library_lets_go() -> None:
    ranks = Ranks()
    fail(ranks)
    assert ranks.revoked
    under_way = ranks.sent + ranks.received
    assert [message.is_cancelled for message in under_way] == [False, False, True]
    for done in range(3):
        assert kept(ranks) == [False] * done + [True] * (3 - done)
        under_way[done].is_over = True
    assert kept(ranks) == [False] * 3
