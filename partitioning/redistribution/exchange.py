"""Redistribution: the ranks of a communicator turn one layout into another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from mpi4py import MPI

from closeranks.collectives.communicator.communicator import Communicator
from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.comms.topology.topology import Topology
from closeranks.errors import Error, UsageError
from closeranks.partitioning.layout.box import Bounds
from closeranks.partitioning.layout.element_words import element_words
from closeranks.partitioning.layout.layout import Layout
from closeranks.partitioning.redistribution import local_arrays, window_exchange
from closeranks.partitioning.redistribution.call_agreement import (
    Stated,
    agreed,
    agreed_most,
    digest,
    exchanged,
    layout_bytes,
    topology_bytes,
)
from closeranks.partitioning.redistribution.conversion_plan import Conversion, check_layouts
from closeranks.partitioning.redistribution.exchange_rounds import (
    Largest,
    StageRounds,
    calls_of,
    elements_of,
    largest,
    largest_of_terms,
    pieces_of,
)
from closeranks.partitioning.redistribution.local_arrays import Array
from closeranks.partitioning.redistribution.message_exchange import MessageExchange
from closeranks.partitioning.redistribution.rank_work import Arrays, RankWork
from closeranks.partitioning.redistribution.window_exchange import HALF_BYTES, WindowExchange

_WHERE: Final = "redistribute"
#: So many conversions a process keeps ready.
_MOST: Final = 32


class Ready:
    """A conversion of one rank, ready to run.

    Parameters
    ----------
    source, target : Layout
        The layouts.
    itemsize : int
        Bytes of an element.
    rank : int
        This rank.
    topology : Topology, optional
        The machine.

    Attributes
    ----------
    work : RankWork
        What the rank does.
    stages : tuple of StageRounds or None
        As agreed; None before.
    slots : dict
        As for `WindowExchange`; empty where messages are used.
    kept : dict
        Layouts of rounds.
    """

    def __init__(
        self, source: Layout, target: Layout, itemsize: int, *, rank: int,
        topology: Topology | None,
    ) -> None:  # fmt: skip
        self._given = source, target, itemsize, topology
        self.work = RankWork(Conversion(*self._given), rank)
        self.stages: tuple[StageRounds, ...] | None = None
        self.slots: dict[tuple[int, int, Bounds], int] = {}
        self.by_window = False
        self.kept: dict[Any, Any] = {}

    def agree(self, comm: Any, limit_bytes: int | None, *, can_share: bool) -> None:
        """Agree on the rounds, and on whether a window carries them.

        Collective.

        Parameters
        ----------
        comm : MPI.Intracomm
            The ranks.
        limit_bytes : int, optional
            As in `redistribute`.
        can_share : bool
            Whether the ranks may have a window.
        """
        most, sums = self._largest(comm)
        if self.work.stages[0] < 0 and self._sizes(most, sums, limit_bytes)[0][1]:
            # No room for sums: terms go straight to the ranks that want the values.
            self.work = RankWork(Conversion(*self._given, is_direct=True), self.work.rank)
            most, sums = self._largest(comm)
        work, part = self.work, self.work.part
        half = HALF_BYTES if limit_bytes is None else min(HALF_BYTES, limit_bytes // 2)
        boxes = max(one.boxes for one in most.values())
        self.by_window = can_share and boxes > 0 and half // boxes >= work.itemsize
        sizes = self._sizes(most, sums, limit_bytes)
        if self.by_window:
            sizes = {
                stage: (half // max(1, one.boxes) // work.itemsize, False)
                for stage, one in most.items()
            }
        mine = [pieces_of(part.sends, stage, size) for stage, (size, _) in sizes.items()]
        pieces = agreed_most(comm, mine)
        self.stages = tuple(
            StageRounds(
                stage,
                size,
                count,
                most[stage].repeats if one_by_one else 0,
                1 if one_by_one else calls_of(most[stage].far * work.itemsize // count, work.nodes),
            )
            for count, (stage, (size, one_by_one)) in zip(pieces, sizes.items(), strict=True)
            if count
        )
        self.kept.clear()
        self.slots = self._slots(comm) if self.by_window else {}

    def _largest(self, comm: Any) -> tuple[dict[int, Largest], int]:
        """Agree on the largest numbers of each stage, and of sums that a rank keeps."""
        work, part = self.work, self.work.part
        mine = [number for stage in work.stages for number in largest(part, stage, work.nodes)]
        *found, sums = agreed_most(comm, [*mine, len(part.sums)])
        each = len(Largest._fields)
        rows = (Largest(*found[at : at + each]) for at in range(0, len(found), each))
        return dict(zip(work.stages, rows, strict=True)), sums

    def _sizes(
        self, most: dict[int, Largest], sums: int, limit_bytes: int | None
    ) -> dict[int, tuple[int, bool]]:
        """Choose the size of a piece in each stage: see `elements_of`."""
        itemsize = self.work.itemsize
        terms = elements_of(largest_of_terms(most), itemsize, limit_bytes, sums=sums)
        return {
            stage: terms if stage <= 0 else elements_of(one, itemsize, limit_bytes)
            for stage, one in most.items()
        }

    def _slots(self, comm: Any) -> dict[tuple[int, int, Bounds], int]:
        """Tell the receivers of each box where it is packed, and learn the same."""
        work = self.work
        own = window_exchange.own_slots(work)
        found = {(stage, work.rank, box): slot for (stage, box), slot in own.items()}
        told: list[list[int]] = [[] for _ in range(work.size)]
        for move in work.part.sends:
            told[move.receiver].append(own[move.stage, move.box])
        heard = [iter(numbers) for numbers in exchanged(comm, told)]
        for move in work.part.receives:
            found[move.stage, move.sender, move.box] = next(heard[move.sender])
        return found


class Known(NamedTuple):
    """What two layouts mean to a rank.

    Attributes
    ----------
    digest : int
        Tells layouts, limit and machine from others, the same in every process.
    shapes : (tuple of int, tuple of int)
        Of the rank's parts.
    ops : frozenset of str
        Reductions of both layouts.
    objects : tuple
        Kept, so that no other object gets the place of one in memory.
    """

    digest: int
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    ops: frozenset[str]
    objects: tuple[Any, ...]


class ReadyConversions:
    """The conversions that a process has made ready, the last ones used."""

    def __init__(self) -> None:
        self._ready: OrderedDict[tuple[Any, ...], Ready] = OrderedDict()
        self._known: OrderedDict[tuple[Any, ...], Known] = OrderedDict()

    def known(
        self, comm: MPI.Intracomm, source: Layout, target: Layout,
        topology: Topology | None, limit_bytes: int | None,
    ) -> Known:  # fmt: skip
        """Read layouts; raises `UsageError` if they do not fit each other or ``comm``."""
        rank = comm.Get_rank()
        key = id(source), id(target), id(topology), limit_bytes, rank, comm.Get_size()
        found = self._known.get(key)
        if found is None:
            check_layouts(_WHERE, source, target)
            source.mesh.check_comm(_WHERE, comm)
            limit = str(limit_bytes).encode()
            parts = layout_bytes(source), layout_bytes(target), topology_bytes(topology), limit
            shapes = source.local_shape(rank), target.local_shape(rank)
            ops = local_arrays.ops_of(source) | local_arrays.ops_of(target)
            found = Known(digest(*parts), shapes, ops, (source, target, topology))
            _add(self._known, key, found)
        return found

    def get(self, key: tuple[Any, ...]) -> Ready | None:
        """Give one that was made before."""
        found = self._ready.get(key)
        if found is not None:
            self._ready.move_to_end(key)
        return found

    def add(self, key: tuple[Any, ...], made: Ready) -> None:
        """Keep one."""
        _add(self._ready, key, made)


def _add(kept: OrderedDict[tuple[Any, ...], Any], key: tuple[Any, ...], made: Any) -> None:
    """Keep something, and forget the oldest."""
    kept[key] = made
    if len(kept) > _MOST:
        kept.popitem(last=False)


_READY: Final = ReadyConversions()


def redistribute(
    comm: MPI.Intracomm,
    array: Array,
    source: Layout,
    target: Layout,
    *,
    out: Array | None = None,
    limit_bytes: int | None = None,
) -> Array:
    """Turn a distributed array from one layout into another.

    Collective: every rank of ``comm`` calls it with the same layouts, which may be
    on different meshes of these ranks.  Ranks are those of ``comm``.  What is sent
    is what `conversion` says.  The call only reads ``array``; when it returns, the
    program may write to it.

    On a closeranks communicator senders are the nearest by ``comm.hierarchy``, and
    a death or a deadline ends the call with the errors of its collectives; then
    ``out`` is undefined.  Ranks of one node exchange by node memory, of which each
    rank keeps 1 MiB a communicator.  On other communicators the topology of the
    meshes counts, if one of them has any.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    array : ndarray
        This rank's part of the source: of any strides, of any dtype without
        objects; read only.
    source, target : Layout
        Of one global shape.
    out : ndarray, optional
        Takes this rank's part of the target; of any strides; shares no memory with
        ``array``.  A new array in C order if not given.
    limit_bytes : int, optional
        Most bytes of packed parts that a rank holds at once, at least those of two
        elements.  The exchange takes as many rounds as that needs.  If it has no
        room for sums of groups, terms go straight to the ranks that want values.

    Returns
    -------
    ndarray
        This rank's part of the target: ``out``, if it was given.

    Raises
    ------
    UsageError
        On all ranks, before anything is sent: if an array has the wrong shape or
        kind on any rank, dtypes differ, the elements have no such reduction, or
        layouts do not fit each other or ``comm``.
    Disagreement
        On all ranks, if layouts or limits differ.
    PeerError
        As collectives of a closeranks communicator.
    """
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        said = "MPI.COMM_NULL" if comm == MPI.COMM_NULL else argument.shown(comm)
        raise UsageError(_WHERE, f"comm is {said}", "give an intra-communicator")
    forked_child.refuse_in_child(_WHERE)
    with _heard_if_left(comm):
        call = _Call(comm, source, target, limit_bytes)
        while not call.settled(array, out):
            pass
        return call.run()


class _Call:
    """One call: what a rank brings in, and what all have agreed on."""

    def __init__(self, comm: Any, source: Any, target: Any, limit_bytes: Any) -> None:
        self._comm, self._source, self._target = comm, source, target
        self._limit = limit_bytes
        self._given: Any = None
        self._made: Any = None
        self._ready: Ready | None = None

    def settled(self, array: Any, out: Any) -> bool:
        """Agree with all ranks; False if it has to be done again.

        Collective.
        """
        comm, source, target = self._comm, self._source, self._target
        can_share = window_exchange.can_share(comm)
        topology = None if can_share else _topology(comm, source, target)
        key: tuple[Any, ...] = (0,)
        problem = None
        try:
            self._limit = _checked_limit(self._limit)
            known = _READY.known(comm, source, target, topology, self._limit)
            self._read(known, array, out)
            key = known.digest, self._given.dtype.itemsize, comm.rank, comm.size, can_share
        except UsageError as wrong:
            problem = wrong
        ready = _READY.get(key)
        kind = _kind(self._given)
        needs_window = can_share and not window_exchange.has_window(comm)
        mine = Stated(problem, key[0], kind[1], (ready is None, needs_window))
        unready, no_window = agreed(
            comm, mine, lambda: (_told(source, target, self._limit), kind[0])
        )
        if no_window and not window_exchange.open_window(comm):
            return False
        if ready is None or unready:
            ready = Ready(source, target, key[1], rank=comm.rank, topology=topology)
            ready.agree(comm, self._limit, can_share=can_share)
            _READY.add(key, ready)
        self._ready = ready
        return True

    def _read(self, known: Known, array: Any, out: Any) -> None:
        """Read the arrays of this rank; raises `UsageError` if they are wrong."""
        given = local_arrays.checked("array", array, known.shapes[0])
        if known.ops:
            local_arrays.check_reducible(given.dtype, known.ops)
        if self._limit is not None:
            least = 2 * given.dtype.itemsize
            argument.whole(_WHERE, "limit_bytes", self._limit, least=least)
        if out is None:
            self._made = local_arrays.made(known.shapes[1], given.dtype)
        else:
            self._made = local_arrays.checked_out(out, given, known.shapes[1])
        self._given = given

    def run(self) -> Array:
        """Exchange, as agreed.

        Collective.
        """
        ready, comm = self._ready, self._comm
        assert ready is not None
        assert ready.stages is not None
        arrays = Arrays(ready.work, self._given, self._made)
        arrays.fill()
        if ready.by_window:
            WindowExchange(comm, ready.work, ready.kept).run(ready.stages, arrays, ready.slots)
        else:
            MessageExchange(comm, ready.work, ready.kept).run(ready.stages, arrays)
        made: Array = self._made
        return made


@contextmanager
def _heard_if_left(comm: MPI.Intracomm) -> Iterator[None]:
    """Tell all ranks if another exception than all get leaves a call.

    The others would wait for this rank, or exchange another round than it.
    """
    try:
        yield
    except (Error, MPI.Exception):
        raise
    except BaseException as error:
        if isinstance(comm, Communicator):
            family = comm.membership.family
            family.notices.leave(error)
            family.world.revoke()
        raise


def _topology(comm: MPI.Intracomm, source: Any, target: Any) -> Topology | None:
    """Give the machine by which senders are near."""
    if isinstance(comm, Communicator):
        return comm.hierarchy
    for layout in (source, target):
        found = layout.mesh.topology if isinstance(layout, Layout) else None
        if found is not None and found.size == comm.size:
            return found
    return None


def _checked_limit(limit_bytes: Any) -> int | None:
    """Read how much may be packed."""
    if limit_bytes is None:
        return None
    return argument.whole(_WHERE, "limit_bytes", limit_bytes, least=1)


_KINDS: Final[dict[Any, tuple[str, int]]] = {}


def _kind(array: Array | None) -> tuple[str, int]:
    """Give the element of an array in words, and a digest of it."""
    if array is None:
        return "", 0
    found = _KINDS.get(array.dtype)
    if found is None:
        dtype = array.dtype
        words = element_words(dtype)
        found = _KINDS[dtype] = words, digest(words.encode())
    return found


def _told(source: Any, target: Any, limit_bytes: Any) -> str:
    limit = "" if limit_bytes is None else f", limit_bytes={limit_bytes}"
    return f"{argument.shown(source)} to {argument.shown(target)}{limit}"
