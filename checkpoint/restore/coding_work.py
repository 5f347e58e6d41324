"""Doing the tasks of `coding_tasks`, on slots and between ranks.

A block that the worker has mapped is read where it lies; others come as
messages, a segment ahead of the arithmetic.  There is no ring of partial sums:
the owner of a parity block receives the data blocks and computes it.  That
moves as many bytes, and touches memory less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.erasure.matrix_product import Product
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.coding_tasks import Task, holder
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel
    from closeranks.checkpoint.control.pending import Pace

#: Bytes of a block that are done at a time: they stay in a cache.
SEGMENT: Final = 1 << 20
#: The same where blocks travel: so long do messages of the program wait for one.
_SENT: Final = 256 << 10
#: Bytes that may wait here for the arithmetic.
_STAGED: Final = 8 << 20


class Recoding:
    """Tasks of one group, done by all of its ranks.

    Making it is local, and all that may fail on one rank alone is done then.

    Parameters
    ----------
    tasks : sequence of Task
        The same on all ranks of the group.
    layout : StripeLayout
        Of the group.
    slots : mapping of Share to Slot
        The slots that this rank has mapped.
    server : callable
        Gives the rank that sends the bytes of a share to ranks that do not map
        it.
    reaches : callable
        Tells whether a rank has mapped a share.
    channel : ControlChannel
        Between the ranks.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        layout: StripeLayout,
        slots: Mapping[Share, Slot],
        server: Callable[[Share], int],
        reaches: Callable[[int, Share], bool],
        channel: ControlChannel,
    ) -> None:
        self._layout, self._slots, self._channel = layout, slots, channel
        self._server, self._reaches = server, reaches
        self._mine = [(at, task, Product(task.matrix)) for at, task in enumerate(tasks)
                      if task.worker == channel.rank]  # fmt: skip
        self._tasks = tasks
        self._travels = any(True for task in tasks for _ in self._foreign(task))
        self._segment = self._segment_bytes()
        # All memory is taken here: who runs out of it later leaves others waiting.
        self._staged = {(at, number): np.empty((2, self._segment), np.uint8)
                        for at, task, _ in self._mine
                        for number, _, _ in self._foreign(task)}  # fmt: skip

    def run(self, pace: Pace | None = None) -> None:
        """Do them, a segment at a time.

        Collective over the group; every rank may go at a pace of its own.

        Parameters
        ----------
        pace : Pace, optional
            When to leave the wire to others; as fast as possible if not given, and
            where nothing travels.
        """
        starts = range(0, self._layout.block, self._segment)
        pace = pace if self._travels else None
        ahead: Callable[[], None] | None = None
        for start in starts:
            finish, was_ahead = ahead or self._start(start), ahead is not None
            began = time.monotonic()
            yields = pace is not None and pace.yields()
            more = start + self._segment in starts and not yields
            ahead = self._start(start + self._segment) if more else None
            finish()
            took_s = time.monotonic() - began
            self._compute(start)
            if pace is not None and yields and not was_ahead:
                pace.rest(took_s)

    def _segment_bytes(self) -> int:
        """Choose how much is done at a time; the same on all ranks."""
        worst: dict[int, int] = {}
        for task in self._tasks:
            worst[task.worker] = worst.get(task.worker, 0) + sum(1 for _ in self._foreign(task))
        most = max(worst.values(), default=0)
        room = SEGMENT if not most else min(_SENT, _STAGED // (2 * most))
        return max(4096, room // 4096 * 4096)

    def _foreign(self, task: Task) -> Iterator[tuple[int, Share, int]]:
        """Give the blocks that a worker reads and has not mapped: number, share, block."""
        for number in task.read:
            share, block = holder(self._layout, task.lane, task.row, number)
            if not self._reaches(task.worker, share):
                yield number, share, block

    def _start(self, start: int) -> Callable[[], None]:
        """Send the blocks of a segment; gives the function that waits for them."""
        sends: list[tuple[int, Bytes]] = []
        receives: list[tuple[int, Bytes]] = []
        me = self._channel.rank
        for at, task in enumerate(self._tasks):
            first, last = self._part(task, start)
            if first >= last:
                continue
            for number, share, block in self._foreign(task):
                if task.worker == me:
                    receives.append((self._server(share), self._arrived(at, number, first, last)))
                elif self._server(share) == me:
                    sends.append((task.worker, self._view(share, block, first, last)))
        return self._channel.move(sends, receives) if sends or receives else _nothing

    def _arrived(self, at: int, number: int, first: int, last: int) -> Bytes:
        """Give where bytes of a block arrive: two segments take turns."""
        turn: Bytes = self._staged[at, number][first // self._segment % 2]
        return turn[: last - first]

    def _compute(self, start: int) -> None:
        """Make this rank's blocks of a segment."""
        for at, task, product in self._mine:
            first, last = self._part(task, start)
            if first >= last:
                continue
            blocks = [
                self._arrived(at, number, first, last) if (at, number) in self._staged
                else self._view(*holder(self._layout, task.lane, task.row, number), first, last)
                for number in task.read
            ]  # fmt: skip
            targets = [holder(self._layout, task.lane, task.row, number) for number in task.write]
            product(blocks, [self._view(*target, first, last) for target in targets])
            for share, block in targets:
                if block >= self._layout.data:
                    area = self._slots[share].parity[block - self._layout.data]
                    area.sum(first, last - first)

    def _part(self, task: Task, start: int) -> tuple[int, int]:
        """Give which bytes of a task are in a segment."""
        return max(task.start, start), min(task.stop, start + self._segment)

    def _view(self, share: Share, block: int, first: int, last: int) -> Bytes:
        """Give bytes of a block of a share that is mapped here."""
        slot, nbytes = self._slots[share], self._layout.block
        if block >= self._layout.data:
            return slot.parity[block - self._layout.data].memory[first:last]
        return slot.room[block * nbytes + first : block * nbytes + last]


def _nothing() -> None:
    """Wait for nothing."""
