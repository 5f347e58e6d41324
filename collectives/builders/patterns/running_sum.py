"""A sum that grows on one rank as partners' sums arrive, with few copies."""

from __future__ import annotations

from typing import NamedTuple

from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.schedule import NOTHING, After, Script
from closeranks.collectives.plans.stage import bring


class Exchange(NamedTuple):
    """One round of a running sum.

    Attributes
    ----------
    peer : int
        Rank whose sum arrives.
    lower : bool
        Whether it is the left operand.
    sends : bool
        Whether it gets our sum too.
    slot : int
        Slot of the messages.
    """

    peer: int
    lower: bool
    sends: bool
    slot: int


class RunningSum:
    """The running sum of one rank, which moves between buffers.

    ``source op block`` overwrites its right operand: with a lower partner the
    sum stays where it is, with a higher one it moves to where the partner's
    sum arrived.  The last move goes to the target.

    Parameters
    ----------
    out : Script
        The pen.
    source : Block
        The own operand, not empty.
    target : Block or None
        Where the sum shall end, None for anywhere; may be the memory of
        ``source``.
    after : tuple of int
        Steps to wait for.
    exchanges : list of Exchange
        What will be given to `take`, in order.
    """

    def __init__(
        self,
        out: Script,
        source: Block,
        target: Block | None,
        after: After,
        exchanges: list[Exchange],
    ) -> None:
        self.out, self.source, self.target = out, source, target
        self.here, self.ready = source, after
        self._moves = sum(not exchange.lower for exchange in exchanges)
        self._grows_in_target = target is not None and (self._moves != 1 or source == target)
        self._fresh = True  # the sum is still the caller's operand
        self._rooms: list[Block] = []
        #: What must be done before a block is written.
        self._free: dict[Block | None, After] = {target: after}

    def take(self, exchange: Exchange) -> None:
        """Write one exchange."""
        out, here, ready = self.out, self.here, self.ready
        sent = out.send(exchange.peer, here, exchange.slot, ready) if exchange.sends else NOTHING
        if exchange.lower:
            self._stay(exchange, sent)
            return
        self._moves -= 1
        room = self._room(last=self._moves == 0)
        came = out.receive(exchange.peer, room, exchange.slot, self._free[room])
        added = out.reduce(here, room, (came, *ready))
        self._leave((sent, added))
        self.here, self.ready = room, (added,)

    def finish(self) -> After:
        """Bring the sum to the target; return what to wait for."""
        if self.target is None or self.here == self.target:
            return self.ready
        after = (*self.ready, *self._free[self.target])
        return bring(self.out, self.here, self.target, after)

    def _stay(self, exchange: Exchange, sent: int) -> None:
        ready = self.ready
        if self._fresh:
            home = self.target if self._grows_in_target else self._room(last=False)
            assert home is not None
            ready = bring(self.out, self.source, home, ready)
            self._leave((sent, *ready))
            self.here = home
        room = self._room(last=False)
        came = self.out.receive(exchange.peer, room, exchange.slot, self._free[room])
        added = self.out.reduce(room, self.here, (came, *ready, sent))
        self._free[room] = self.ready = (added,)

    def _leave(self, users: After) -> None:
        """Note who still reads the block that the sum leaves."""
        if self._fresh:
            self._free[self.target] += users
            self._fresh = False
        else:
            self._free[self.here] = users

    def _room(self, *, last: bool) -> Block:
        """Return a block for what arrives."""
        if last and not self._fresh and self.target is not None and self.here != self.target:
            return self.target
        for room in self._rooms:
            if room != self.here:
                return room
        count = self.source.count
        room = Block(self.out.scratch(count), 0, count)
        self._rooms.append(room)
        self._free[room] = ()
        return room
