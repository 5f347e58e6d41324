"""Exchange by messages: packed parts in one Alltoallv a round.

A collective of the communicator brings what a conversion needs: deadlines and
deaths end it on every rank, its messages meet none of the program's, and on a
closeranks communicator it follows the hierarchy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.partitioning.redistribution.exchange_rounds import (
    ExchangeRound,
    StageRounds,
    call_of,
    in_order,
)
from closeranks.partitioning.redistribution.rank_work import (
    Arrays,
    Bytes,
    MovePiece,
    RankWork,
    whole_bytes,
)


class Side(NamedTuple):
    """What a rank sends, or receives, in one round.

    Attributes
    ----------
    pieces : list of MovePiece
        In the order of the other ranks.
    packed : (list of int, list of int)
        Bytes to or from each rank, and where they begin, packed.
    placed : (list of int, list of int) or None
        The same in the local array, if all lie there side by side.
    starts : list of int
        Where each piece begins, packed; and the end.
    calls : list of list of int
        Bytes to or from each rank, call by call.
    """

    pieces: list[MovePiece]
    packed: tuple[list[int], list[int]]
    placed: tuple[list[int], list[int]] | None
    starts: list[int]
    calls: list[list[int]]


def side_of(
    pieces: list[MovePiece], peers: Sequence[int], itemsize: int, turns: Sequence[int], calls: int
) -> Side:
    """Lay out what travels in a round.

    Parameters
    ----------
    pieces : list of MovePiece
        By other rank.
    peers : sequence of int
        The other rank of each.
    itemsize : int
        Bytes of an element.
    turns : sequence of int
        In which call it is the turn of each rank.
    calls : int
        How many there are.

    Returns
    -------
    Side
        The layout.
    """
    counts, places = [0] * len(turns), [0] * len(turns)
    for one, peer in zip(pieces, peers, strict=True):
        counts[peer] += one.elements * itemsize
        places[peer] = one.first * itemsize
    begins = [0, *accumulate(counts)]
    starts = [0, *accumulate(one.elements * itemsize for one in pieces)]
    alone = len(set(peers)) == len(peers) and all(one.first >= 0 for one in pieces)
    # Terms are no part of the target, and what is passed on lies beside what comes.
    alone = alone and all(one.move.stage > 0 and not one.move.has_arrived for one in pieces)
    due = [[0] * len(turns) for _ in range(calls)]
    for peer in set(peers):
        due[turns[peer]][peer] = counts[peer]
    return Side(pieces, (counts, begins[:-1]), (counts, places) if alone else None, starts, due)


class MessageExchange:
    """The exchange of one call.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; a closeranks communicator or a plain one.
    work : RankWork
        What this rank does.
    kept : dict
        Layouts of rounds that were made before; takes new ones.
    """

    #: Rounds of which layouts are kept.
    _MOST = 64

    def __init__(self, comm: Any, work: RankWork, kept: dict[Any, tuple[Side, Side]]) -> None:
        self._comm, self._work, self._kept = comm, work, kept
        self._room: list[Bytes] = [np.empty(0, np.uint8)] * 2

    def run(self, stages: Sequence[StageRounds], arrays: Arrays) -> None:
        """Exchange all stages.

        Collective.

        Parameters
        ----------
        stages : sequence of StageRounds
            As agreed.
        arrays : Arrays
            Read and written; free when it returns.
        """
        arrays.copy(self._work.copies)
        term = -1
        for how, which in in_order(stages, self._work.terms, self._work.size):
            for due in range(term + 1, which.term + 1):
                arrays.reduce_own(due)
            term = max(term, which.term)
            if how.stage > 0:
                arrays.forget_sums()
            self._exchange(how, which, arrays)

    def _exchange(self, how: StageRounds, which: ExchangeRound, arrays: Arrays) -> None:
        """Exchange one round."""
        out, into = self._sides(how, which)
        given = whole_bytes(arrays.array) if out.placed and out.pieces else None
        taken = whole_bytes(arrays.out) if into.placed and into.pieces else None
        send: Any = [given, out.placed, MPI.BYTE]
        if given is None:
            data = self._packed(0, out.starts[-1])
            for one, start, stop in _spans(out):
                arrays.pack(one, data[start:stop])
            send = [data, out.packed, MPI.BYTE]
        receive: Any = [taken, into.placed, MPI.BYTE]
        come = self._packed(1, 0 if taken is not None else into.starts[-1])
        if taken is None:
            receive = [come, into.packed, MPI.BYTE]
        for due, coming in zip(out.calls, into.calls, strict=True):
            send[1], receive[1] = (due, send[1][1]), (coming, receive[1][1])
            self._comm.Alltoallv(send, receive)
        if how.stage <= 0:
            found = [(come[start:stop], one) for one, start, stop in _spans(into)]
            arrays.reduce(found, how, which)
        elif taken is None:
            for one, start, stop in _spans(into):
                arrays.unpack(come[start:stop], one)

    def _sides(self, how: StageRounds, which: ExchangeRound) -> tuple[Side, Side]:
        """Give what travels in a round; kept for the next call unless there are many."""
        key = how, which
        found = self._kept.get(key)
        if found is None:
            work = self._work
            sends, receives = work.sends(how, which), work.receives(how, which)
            to = [one.move.receiver for one in sends]
            by = [one.move.sender for one in receives]
            mine, count, calls = work.nodes[work.rank], max(work.nodes) + 1, how.calls
            due = [call_of(mine, node, count, calls) for node in work.nodes]
            coming = [call_of(node, mine, count, calls) for node in work.nodes]
            found = (
                side_of(sends, to, work.itemsize, due, calls),
                side_of(receives, by, work.itemsize, coming, calls),
            )
            if len(self._kept) < self._MOST:
                self._kept[key] = found
        return found

    def _packed(self, side: int, nbytes: int) -> Bytes:
        """Give room for packed parts; that of the round before, if it is large enough."""
        if len(self._room[side]) < nbytes:
            self._room[side] = np.empty(nbytes, np.uint8)
        return self._room[side][:nbytes]


def _spans(side: Side) -> list[tuple[MovePiece, int, int]]:
    """Give each piece with its begin and end, packed."""
    return list(zip(side.pieces, side.starts, side.starts[1:], strict=False))
