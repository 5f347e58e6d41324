"""Weighted vectors become one sum in the memory of every node.

The ranks that count in a round own the parts of the sum.  Inside a node they
read the vectors of all ranks in place.  Between nodes each node adds its own
vectors first; an owner receives one partial sum a node, and sends its part of
the sum to each of the other nodes::

    node 0      vectors --+                     +--> sum of node 0
                          v  own part           |
                       owner of part k  --------+
                          ^  partial sum        |
    node 1      vectors --+                     +--> sum of node 1

Late ranks own nothing.  The sum stays in node memory until all ranks of the
node have left the round.  Where all ranks of a node are late, its lowest one
receives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.coded.transport.gradient_layout import (
    Flats,
    GradientLayout,
    weighted_sum,
)
from closeranks.collectives.coded.transport.round_memory import MOVED, PLACED, STATE

if TYPE_CHECKING:
    from closeranks.collectives.coded.transport.cell_messages import CellMessages
    from closeranks.collectives.coded.transport.round_memory import RoundMemory

#: Tags of gradients begin here; a round has two, and after so many rounds they come again.
_FIRST_TAG: Final = 16
_ROUNDS: Final = 8192


class VectorTerm(NamedTuple):
    """A vector in the memory of a node, and its weight.

    Attributes
    ----------
    rank : int
        Whose it is.
    flats : list of ndarray or None
        The vector; None on other nodes.
    weight : float
        Its factor.
    """

    rank: int
    flats: Flats | None
    weight: float


class GradientExchange:
    """The exchange of the sums of one rank.

    Parameters
    ----------
    memory : RoundMemory
        Of this node.
    messages : CellMessages
        Of this rank.
    cells : sequence of tuple of int
        Ranks of each node, ascending.
    mine : int
        Which of them is this one.
    rank : int
        This rank.

    Attributes
    ----------
    moved_bytes : int
        Read from vectors and written to sums here, or sent.
    """

    def __init__(
        self,
        memory: RoundMemory,
        messages: CellMessages,
        cells: Sequence[tuple[int, ...]],
        mine: int,
        rank: int,
    ) -> None:
        self._memory, self._messages = memory, messages
        self._cells, self._mine, self._rank = cells, mine, rank
        self._member = cells[mine].index(rank)
        self._cell_of = {rank: cell for cell, ranks in enumerate(cells) for rank in ranks}
        self.moved_bytes = 0

    def exchange(
        self,
        round_: int,
        ranks: Sequence[int],
        terms: Sequence[VectorTerm],
        result: Flats,
        layout: GradientLayout,
        until: Callable[[Callable[[], bool]], object],
    ) -> None:
        """Do this rank's part of the sum, and wait until all of it is there.

        Parameters
        ----------
        round_ : int
            The round.
        ranks : sequence of int
            The ranks that count, ascending; at least one.
        terms : sequence of VectorTerm
            Vectors of all nodes, in the order in which they are added.
        result : list of ndarray
            The sum in the memory of this node.
        layout : GradientLayout
            Of all vectors.
        until : callable
            Waits until a function gives true.
        """
        moved = self._memory.word(round_, MOVED)
        placed = 0
        if len(self._cells) > 1:
            placed = self._exchange_between(round_, ranks, terms, result, layout, until)
        elif self._rank in ranks:
            index = list(ranks).index(self._rank)
            self._sum(layout.shard(result, index, len(ranks)), index, len(ranks), terms, layout)
            placed = 1
        words = self._memory.words
        if placed:
            words.add(moved, placed)
            words.store(self._memory.rank_word(round_, self._member, STATE), PLACED)
        until(lambda: words.load(moved) == len(ranks))

    def lacks(self, round_: int, ranks: Sequence[int], dead: Collection[int]) -> bool:
        """Tell whether the sum lacks something that only ranks could add that died.

        Local.  In several nodes everything may be lacking: messages, too.
        """
        if len(self._cells) > 1:
            return bool(dead)
        load, memory = self._memory.words.load, self._memory
        if load(memory.word(round_, MOVED)) == len(ranks):
            return False
        members = [self._cells[self._mine].index(rank) for rank in ranks if rank in dead]
        return any(load(memory.rank_word(round_, one, STATE)) != PLACED for one in members)

    def _sum(
        self,
        out: Flats,
        index: int,
        count: int,
        terms: Sequence[VectorTerm],
        layout: GradientLayout,
    ) -> None:
        """Add a part of the vectors of this node."""
        own = [
            (layout.shard(term.flats, index, count), term.weight)
            for term in terms
            if term.flats is not None
        ]
        weighted_sum(out, own)
        self.moved_bytes += (len(own) + 1) * sum(flat.nbytes for flat in out)

    def _agents(self, ranks: Sequence[int], cell: int) -> list[int]:
        """Give the ranks of a node that send and receive for it."""
        found = [rank for rank in self._cells[cell] if rank in ranks]
        return found or [self._cells[cell][0]]

    def _exchange_between(
        self,
        round_: int,
        ranks: Sequence[int],
        terms: Sequence[VectorTerm],
        result: Flats,
        layout: GradientLayout,
        until: Callable[[Callable[[], bool]], object],
    ) -> int:
        """Do the same between nodes; gives how many parts this rank has placed."""
        comm, count = self._messages.comm, len(ranks)
        assert comm is not None
        first_tag = _FIRST_TAG + 2 * (round_ % _ROUNDS)
        givers = sorted({self._cell_of[term.rank] for term in terms})
        agents = {cell: self._agents(ranks, cell) for cell in range(len(self._cells))}
        mine = agents[self._mine]
        parts: list[tuple[int, bytearray, Any]] = []
        for index, owner in enumerate(ranks):
            if self._cell_of[owner] == self._mine:
                continue
            if mine[index % len(mine)] == self._rank:
                if self._mine in givers:
                    partial = [np.empty_like(one) for one in layout.shard(result, index, count)]
                    self._sum(partial, index, count, terms, layout)
                    self._send(comm, partial, owner, first_tag)
                shard = layout.shard(result, index, count)
                room = bytearray(sum(flat.nbytes for flat in shard))
                request = comm.Irecv([room, MPI.BYTE], owner, first_tag + 1)
                self._messages.keep(request, room)
                parts.append((index, room, request))
        placed = 0
        if self._rank in ranks:
            index = list(ranks).index(self._rank)
            shard = layout.shard(result, index, count)
            self._own_part(
                comm, shard, index, count, terms, givers, agents, layout, first_tag, until
            )
            for cell in range(len(self._cells)):
                if cell != self._mine:
                    to = agents[cell][index % len(agents[cell])]
                    self._send(comm, shard, to, first_tag + 1)
            placed = 1
        until(lambda: all(request.Test() for _, _, request in parts))
        for index, room, _ in parts:
            _unpacked(layout.shard(result, index, count), room)
        return placed + len(parts)

    def _own_part(
        self,
        comm: MPI.Intracomm,
        shard: Flats,
        index: int,
        count: int,
        terms: Sequence[VectorTerm],
        givers: Sequence[int],
        agents: dict[int, list[int]],
        layout: GradientLayout,
        tag: int,
        until: Callable[[Callable[[], bool]], object],
    ) -> None:
        """Add the partial sums of all nodes to the part that this rank owns."""
        rooms, requests = {}, []
        for cell in givers:
            if cell != self._mine:
                rooms[cell] = bytearray(sum(flat.nbytes for flat in shard))
                by = agents[cell][index % len(agents[cell])]
                requests.append(comm.Irecv([rooms[cell], MPI.BYTE], by, tag))
                self._messages.keep(requests[-1], rooms[cell])
        own = [np.empty_like(flat) for flat in shard]
        if self._mine in givers:
            self._sum(own, index, count, terms, layout)
        until(lambda: all(request.Test() for request in requests))
        partials = []
        for cell in givers:
            flats = own
            if cell != self._mine:
                flats = [np.empty_like(flat) for flat in shard]
                _unpacked(flats, rooms[cell])
            partials.append((flats, 1.0))
        weighted_sum(shard, partials)

    def _send(self, comm: MPI.Intracomm, flats: Flats, to: int, tag: int) -> None:
        """Send parts of a vector; a copy of them, which may outlive the round."""
        data = b"".join(flat.tobytes() for flat in flats)
        self._messages.keep(comm.Isend([data, MPI.BYTE], to, tag), data)
        self._messages.sent_bytes += len(data)


def _unpacked(flats: Flats, data: bytearray) -> None:
    """Copy what was received to parts of a vector."""
    start = 0
    for flat in flats:
        flat[...] = np.frombuffer(data, flat.dtype, flat.size, start)
        start += flat.nbytes
