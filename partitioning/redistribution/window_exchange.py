"""Exchange inside a node: parts are packed in memory that all ranks read.

Each rank packs a piece of every box that it sends into its half of a window,
all meet, and each unpacks what it wants from the others' halves: two copies,
and the first is still in the caches at the second.  There are two halves in
turn, so one meeting a round is enough: a half is packed again only after the
meeting of the round that follows, when all have read it.  Boxes that several
ranks want are packed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from closeranks.collectives.communicator.communicator import Communicator
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.shm import shared_arrays
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.errors import Unavailable
from closeranks.partitioning.layout.box import Bounds, cells
from closeranks.partitioning.redistribution.exchange_rounds import (
    ExchangeRound,
    StageRounds,
    rounds,
)
from closeranks.partitioning.redistribution.rank_work import Arrays, Bytes, MovePiece, RankWork
from closeranks.partitioning.redistribution.store_choice import StoreChoice

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World

#: Bytes of a half: packed and read while they are in the second-level cache.
HALF_BYTES: Final = 1 << 19
#: Elements that a rank copies to itself piece by piece, if they are more.
_LEAST_COPIED: Final = 1 << 16
#: Stage, sender and box -> number of the box in the sender's half.
Slots = dict[tuple[int, int, Bounds], int]


class NodeWindow:
    """Memory of every rank of a node that all of them read.

    Collective over the communicator to make.

    Parameters
    ----------
    comm : Communicator
        All its ranks are on one node.

    Attributes
    ----------
    halves : list of list of ndarray of uint8
        Rank -> its two halves.
    turn : int
        Which half is next.
    stores : StoreChoice
        How this rank packs its halves.
    """

    def __init__(self, comm: Communicator) -> None:
        membership = comm.membership
        if not engine().in_flight:
            shared_arrays.let_go()
        with membership.together("redistribute"):
            node = membership.world.node
            found = shared_arrays.make_window(membership.service.careful, node, 2 * HALF_BYTES)
        by_rank = dict(zip(ranks_in(node, comm), found, strict=True))
        self.halves = [
            [by_rank[rank][:HALF_BYTES], by_rank[rank][HALF_BYTES:]] for rank in range(len(found))
        ]
        self.turn = 0
        self.stores = StoreChoice()

    def close(self) -> None:
        """Drop the memory, which the world would keep until it is collected.  Local."""
        self.halves = []


#: World -> its window; None where its node has no memory left for one.
_WINDOWS: Final[WeakKeyDictionary[World, NodeWindow | None]] = WeakKeyDictionary()


def can_share(comm: Any) -> bool:
    """Tell whether all ranks of a communicator may read one another's window.

    Local, the same on all ranks; collective at the first call on a communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        Any communicator.

    Returns
    -------
    bool
        False for one that is not of closeranks, or spans nodes.
    """
    if not isinstance(comm, Communicator) or comm.size == 1:
        return False
    world = comm.membership.world
    return world.node.size == comm.size and _WINDOWS.get(world, 0) is not None


def has_window(comm: Any) -> bool:
    """Tell whether a communicator has a window.  Local."""
    return _WINDOWS.get(comm.membership.world) is not None


def open_window(comm: Any) -> bool:
    """Make a window for a communicator.

    Collective.

    Parameters
    ----------
    comm : Communicator
        One that can share.

    Returns
    -------
    bool
        False, on all ranks, if there is no memory for it.
    """
    world = comm.membership.world
    try:
        _WINDOWS[world] = world.own(NodeWindow(comm))
    except Unavailable:
        _WINDOWS[world] = None
    return _WINDOWS[world] is not None


class WindowExchange:
    """The exchange of one call.

    Parameters
    ----------
    comm : Communicator
        It has a window.
    work : RankWork
        What this rank does.
    kept : dict
        Places of pieces that were found before; takes new ones.
    """

    #: Rounds of which places are kept.
    _MOST = 64

    def __init__(self, comm: Communicator, work: RankWork, kept: dict[Any, Any]) -> None:
        self._comm, self._work, self._kept = comm, work, kept
        window = _WINDOWS[comm.membership.world]
        assert window is not None
        self._window = window

    def run(self, stages: Sequence[StageRounds], arrays: Arrays, slots: Slots) -> None:
        """Exchange all stages.

        Collective.

        Parameters
        ----------
        stages : sequence of StageRounds
            As agreed; each round carries a piece of every box.
        arrays : Arrays
            Read and written.  ``out`` is free when it returns, and so is ``array``.
        slots : dict
            Stage, sender and box -> number of the box in the sender's half.
        """
        copies = self._copies(stages)
        for how in stages:
            for which in rounds(how, self._work.terms, self._work.size):
                sends, receives = self._pieces(how, which)
                self._pack(how, sends, arrays, slots)
                arrays.copy(next(copies, ()))  # while others pack
                self._comm.Barrier()
                come = self._come(how, receives, slots)
                self._window.turn ^= 1
                if how.stage <= 0:
                    arrays.reduce(come, how, which)
                    continue
                for data, one in come:
                    arrays.unpack(data, one)
        for some in copies:
            arrays.copy(some)

    def _copies(self, stages: Sequence[StageRounds]) -> Iterator[list[tuple[Any, Any]]]:
        """Distribute what the rank copies to itself among the rounds."""
        found = self._kept.get("copies")
        if found is None:
            count = sum(how.pieces for how in stages)
            large = sum(cells(copy.box) for copy in self._work.part.copies) > _LEAST_COPIED
            found = self._work.cut_copies(count) if large and count > 1 else self._work.copies
            self._kept["copies"] = found
        each = -(-len(found) // max(1, sum(how.pieces for how in stages)))
        return (found[at : at + each] for at in range(0, len(found), max(1, each)))

    def _pack(self, how: StageRounds, sends: list[MovePiece], arrays: Arrays, slots: Slots) -> None:
        """Pack what is sent in a round."""
        work, stores = self._work, self._window.stores
        mine = self._window.halves[work.rank][self._window.turn]
        room = how.elements * work.itemsize
        nbytes = sum(one.elements for one in sends) * work.itemsize
        past, began = stores.past(nbytes), perf_counter()
        for one in sends:
            start = room * slots[how.stage, work.rank, one.move.box]
            arrays.pack(one, mine[start : start + one.elements * work.itemsize], past=past)
        stores.note(nbytes, perf_counter() - began, past=past)

    def _come(
        self, how: StageRounds, receives: list[MovePiece], slots: Slots
    ) -> list[tuple[Bytes, MovePiece]]:
        """Find what the others have packed for this rank in a round."""
        room, itemsize = how.elements * self._work.itemsize, self._work.itemsize
        found: list[tuple[Bytes, MovePiece]] = []
        for one in receives:
            theirs = self._window.halves[one.move.sender][self._window.turn]
            start = room * slots[how.stage, one.move.sender, one.move.box]
            found.append((theirs[start : start + one.elements * itemsize], one))
        return found

    def _pieces(
        self, how: StageRounds, which: ExchangeRound
    ) -> tuple[list[MovePiece], list[MovePiece]]:
        """Give what is packed and what is read in a round."""
        key = how, which
        found: tuple[list[MovePiece], list[MovePiece]] | None = self._kept.get(key)
        if found is None:
            sends = {(one.move.box): one for one in self._work.sends(how, which)}
            found = list(sends.values()), self._work.receives(how, which)
            if len(self._kept) < self._MOST:
                self._kept[key] = found
        return found


def own_slots(work: RankWork) -> dict[tuple[int, Bounds], int]:
    """Give numbers to the boxes that a rank sends in each stage.

    Parameters
    ----------
    work : RankWork
        What it does.

    Returns
    -------
    dict
        Stage and box -> place in its half.
    """
    found: dict[tuple[int, Bounds], int] = {}
    counts: dict[int, int] = {}
    for move in work.part.sends:
        if (move.stage, move.box) not in found:
            found[move.stage, move.box] = counts.get(move.stage, 0)
            counts[move.stage] = found[move.stage, move.box] + 1
    return found
