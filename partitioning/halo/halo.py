"""The halo: ghost cells around this rank's part, filled by their owners."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.errors import UsageError
from closeranks.partitioning.halo.array_address import address_of
from closeranks.partitioning.halo.ghost_messages import BoundMessages, by_peer
from closeranks.partitioning.halo.ghost_stage import GhostStage
from closeranks.partitioning.halo.halo_arguments import (
    check_array,
    check_numbers,
    described,
    digest_of,
    read_ghosts,
)
from closeranks.partitioning.halo.halo_traffic import HaloTraffic, agree, check_comm
from closeranks.partitioning.halo.near_messages import MOST_ITEM, NearCells
from closeranks.partitioning.layout.box import cells, slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self

    from closeranks.partitioning.halo.ghosts import GhostCopy, Ghosts, Sides
    from closeranks.partitioning.layout.layout import Layout

#: Of so many arrays the messages are kept; the one used longest ago goes first.
MOST: Final = 16
#: Cells of a message, and of each of its runs, from which on one copy pays inside a node.
LONG: Final = 512
LONG_RUN: Final = 64
_EXCHANGE, _REDUCE = "Halo.exchange", "Halo.reduce"


class _Bound(NamedTuple):
    """What moves the cells of one array: messages, and copies inside the node."""

    messages: BoundMessages
    near: NearCells | None


class Halo:
    """Ghost cells around each rank's part of an array.

    A padded array holds this rank's part and, at both ends of each array axis, so
    many cells of its neighbours.  Ghosts wider than the neighbour's part come from
    ranks further away.  Ghosts outside of an array that is not periodic have no
    owner: no call touches them.

    Collective over ``comm`` to make and to close.  Where the layout has Broadcast
    axes, each rank gets its ghosts from ranks that hold the same copy.

    Parameters
    ----------
    comm : MPI.Intracomm
        Has as many ranks as the mesh, numbered as there.  The program's messages
        on it never meet those of the halo.
    layout : Layout
        The parts; without Partial.
    width : int or sequence
        How many ghost cells: a number for all, or one item an array axis, each a
        number or a pair (low, high).  ``(2, 1)`` is 2 on axis 0 and 1 on axis 1;
        ``((2, 1), 0)`` is 2 below and 1 above on axis 0.
    periodic : bool or sequence of bool
        Whether array axes are rings, whose first cell follows the last one: all
        alike, or one an axis.
    corners : bool
        Whether cells that are ghosts on two or more axes are filled.

    Attributes
    ----------
    layout, corners
        As given.
    widths : tuple of (int, int)
        Array axis -> low and high width.
    periodic : tuple of bool
        Array axis -> whether it is a ring.
    shape : tuple of int
        Of this rank's padded array.

    Raises
    ------
    UsageError
        On all ranks: if sizes do not fit, a width is negative or exceeds a
        periodic axis, the layout has Partial, or ranks pass different arguments.
    Disagreement
        In place of the last, if ``comm`` checks arguments.

    Examples
    --------
    >>> halo = Halo(comm, layout, 1)  # doctest: +SKIP
    >>> u = halo.empty(float)  # doctest: +SKIP
    >>> halo.exchange(u)  # doctest: +SKIP
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        layout: Layout,
        width: int | Sequence[int | Sides],
        *,
        periodic: bool | Sequence[bool] = False,
        corners: bool = True,
    ) -> None:
        check_comm(comm)
        ghosts = _agreed_ghosts(comm, layout, width, periodic, corners=corners)
        rank = comm.Get_rank()
        self.layout, self.corners = layout, ghosts.corners
        self.widths, self.periodic = ghosts.widths, ghosts.periodic
        self.shape = ghosts.shape(rank)
        self._said = described(ghosts)
        # By the ellipsis an array of no axes gives a view, too.
        self._inside: Any = (*slices(ghosts.interior(rank)), ...)
        received, sent = ghosts.received(rank), ghosts.sent(rank)
        self._own = [one for one in received if one.peer == rank]
        self._received = by_peer([one for one in received if one.peer != rank], ghosts=True)
        self._sent = by_peer([one for one in sent if one.peer != rank], ghosts=False)
        self._bound: OrderedDict[tuple[Any, ...], _Bound] = OrderedDict()
        #: ``id`` of an array -> what was found for it by its address.
        self._known: dict[int, tuple[Any, tuple[int, ...], Any, _Bound]] = {}
        self._stages: dict[np.dtype[Any], GhostStage] = {}
        self._under_way: tuple[str, _Bound, NDArray[Any]] | None = None
        self._is_closed = False
        self._traffic = HaloTraffic(comm)
        short = _with_short_runs(ghosts, rank, received, takes=True)
        needed = _with_short_runs(ghosts, rank, sent, takes=False)
        self._near: Any = self._traffic.near(
            [one for one in self._received if one[0] in short],
            [one for one in self._sent if one[0] in needed],
        )

    def empty(self, dtype: DTypeLike = float) -> NDArray[Any]:
        """Make a padded array for this rank.  Local.

        Parameters
        ----------
        dtype : dtype
            Its element.

        Returns
        -------
        ndarray
            Zeros, of `shape`.

        Raises
        ------
        UsageError
            If there is no such type, or no memory (local).
        """
        element = argument.element_type("Halo.empty", dtype)
        try:
            return np.zeros(self.shape, element)
        except (MemoryError, ValueError):  # the latter: more than can be addressed
            raise UsageError("Halo.empty", f"no memory for {self.shape} of {element}",
                             "use more ranks, or a smaller width") from None  # fmt: skip

    def interior(self, array: NDArray[Any]) -> NDArray[Any]:
        """View this rank's part of a padded array.  Local.

        Parameters
        ----------
        array : ndarray
            Padded.

        Returns
        -------
        ndarray
            Without the ghosts; shares the memory.

        Raises
        ------
        UsageError
            If the array has another shape (local).
        """
        remedy = f"give one of shape {self.shape}"
        argument.instance("Halo.interior", "the array", array, np.ndarray, remedy)
        if array.shape != self.shape:
            problem = f"an array of shape {array.shape}"
            raise UsageError("Halo.interior", problem, remedy)
        view: NDArray[Any] = array[self._inside]
        return view

    def exchange(self, array: NDArray[Any]) -> None:
        """Fill the ghosts with the cells of their owners.

        Collective; ``start`` and ``finish``.  All ranks pass the same element type;
        strides may differ.

        Parameters
        ----------
        array : ndarray
            Padded, of any strides; the interior is only read.

        Raises
        ------
        UsageError
            If the array has another shape or is read-only (local, before anything
            is sent; on all ranks of a communicator that checks).  If a rank that
            owns ghosts passes another type; the halo is of no use then.
        PeerLost, Revoked
            If ranks have died or given up.  The halo is of no use then.
        """
        self._start_known(_EXCHANGE, array)
        self._complete()

    def start(self, array: NDArray[Any]) -> None:
        """Begin an exchange; the program goes on.

        Collective.  Until ``finish`` returns the interior must not be changed, and
        ghosts are undefined.

        Parameters
        ----------
        array : ndarray
            As for `exchange`; kept alive until then.

        Raises
        ------
        UsageError, PeerLost, Revoked
            As `exchange`; also if one is under way (local).
        """
        self._start_known("Halo.start", array)

    def finish(self) -> None:
        """Wait until the exchange that was started is over.

        If a signal handler raises meanwhile, the exchange stays under way: call it
        again.  It also ends an `exchange` or a `reduce` whose wait was left so.

        Raises
        ------
        UsageError
            If none was started (local).
        PeerLost, Revoked
            As `exchange`.
        """
        if self._under_way is None:
            raise UsageError("Halo.finish", "no exchange is under way", "call start(array) first")
        self._complete()

    def reduce(self, array: NDArray[Any]) -> None:
        """Add the ghosts to the cells of their owners; then these ghosts are 0.

        Collective; the adjoint of `exchange`: ``<x, exchange y> = <reduce x, y>``
        over all cells of the padded arrays.  Ghosts without an owner keep their
        value.  Terms are added in the order of ranks, so every run gives the same
        bits.  An attempt that fails restores the array.

        Parameters
        ----------
        array : ndarray
            Padded, of numbers, of any strides.

        Raises
        ------
        UsageError, PeerLost, Revoked
            As `exchange`; also if the elements are no numbers.
        """
        self._start(_REDUCE, array)
        self._complete()

    def _start_known(self, operation: str, array: NDArray[Any]) -> None:
        """Start an exchange; an array that was here before is not looked at anew."""
        known = self._known.get(id(array))
        if (
            known is None
            or self._under_way is not None
            # NumPy resizes no array that has a weak reference: its memory stays.
            or known[0]() is not array
            or known[1] != array.strides
            or known[2] is not array.dtype
            or array.shape != self.shape
            or not array.flags.writeable
        ):
            self._start(operation, array)
        else:
            self._traffic.refuse(operation)
            self._begin(operation, known[3], array)

    def _start(self, operation: str, array: NDArray[Any]) -> None:
        """Start all messages of a call, and do what needs none."""
        self._refuse(operation)
        bound = self._messages(operation, array, reduces=operation is _REDUCE)
        self._begin(operation, bound, array)

    def _begin(self, operation: str, bound: _Bound, array: NDArray[Any]) -> None:
        """Start the messages of an array that is right."""
        messages, near = bound
        self._under_way = (operation, bound, array)
        try:
            if messages.requests:
                if messages.packs:
                    messages.gather(array)
                self._traffic.start(operation, messages.requests)
            if near is not None:
                self._near.lay(near, self._traffic.wait, operation)
        except BaseException:
            self._traffic.is_broken = True  # some have been told, and others not
            raise
        if self._own and operation is not _REDUCE:
            self._stage(array.dtype).copy_own(array)

    def _complete(self) -> None:
        """Wait for all messages of the call that is under way."""
        assert self._under_way is not None
        operation, (messages, near), array = self._under_way
        if near is not None:
            other = self._near.take(near, self._traffic.wait, operation)
            if other is not None:
                self._traffic.raise_other_kind(operation, other, array.dtype)
        if messages.requests:
            self._traffic.complete(operation, messages, array.dtype)
            if messages.packs:
                messages.scatter(array)
        self._under_way = None
        if operation is _REDUCE:
            self._stage(array.dtype).add(array)

    def _refuse(self, operation: str) -> None:
        """Raise if a call cannot be served, whatever its arguments are."""
        if self._is_closed:
            raise UsageError(operation, "the halo is closed", "make a new one")
        self._traffic.refuse(operation)
        if self._under_way is not None:
            raise UsageError(operation, "an exchange is under way", "call finish() first")

    def _stage(self, dtype: np.dtype[Any]) -> GhostStage:
        found = self._stages.get(dtype)
        if found is None:
            found = GhostStage(dtype, self._own, self._received, self._sent)
            self._stages[dtype] = found
        return found

    def _messages(self, operation: str, array: NDArray[Any], *, reduces: bool) -> _Bound:
        """Check an array, and give its messages."""
        problem = None
        try:
            check_array(operation, array, self.shape)
            if reduces:
                check_numbers(operation, array.dtype)
        except UsageError as wrong:
            problem = wrong
        if self._traffic.checks:
            what = "reduce" if reduces else "exchange"
            who = f"halo {self._traffic.number}, {self._said}"
            said = f"{what} of {getattr(array, 'dtype', None)} by {who}"
            self._traffic.check(operation, problem, said)
        elif problem is not None:
            raise problem
        if reduces:
            self._traffic.keep(array)
        found = self._messages_at(array, reduces=reduces)
        if not (reduces or self._traffic.checks):  # else every call is to come here
            if len(self._known) > MOST:
                self._known.clear()
            self._known[id(array)] = weakref.ref(array), array.strides, array.dtype, found
        return found

    def _messages_at(self, array: NDArray[Any], *, reduces: bool) -> _Bound:
        """Give the messages of an array's memory by its address."""
        key = (address_of(array), array.strides, array.dtype, reduces)
        found = self._bound.get(key)
        if found is not None:
            self._bound.move_to_end(key)
            return found
        messages, near = BoundMessages(self._traffic.comm, array), None
        if reduces:
            buffers = self._stage(array.dtype).buffers
            for (peer, _), buffer in zip(self._sent, buffers, strict=True):
                messages.receive_buffer(peer, buffer)
            messages.send(self._received)
        else:
            givers, takers = frozenset[int](), frozenset[int]()
            if self._near is not None and array.itemsize <= MOST_ITEM:
                near, givers, takers = self._near.bind(array), self._near.givers, self._near.takers
            messages.receive([one for one in self._received if one[0] not in givers])
            messages.send([one for one in self._sent if one[0] not in takers])
        found = self._bound[key] = _Bound(messages, near)
        if len(self._bound) > MOST:
            self._bound.popitem(last=False)[1].messages.close()
            self._known.clear()
        return found

    def close(self) -> None:
        """Free what the halo holds.  Collective; harmless twice.

        Raises
        ------
        UsageError
            If an exchange is under way (local).
        """
        if self._is_closed or forked_child.is_child():
            return
        if self._under_way is not None and not self._traffic.is_broken:
            raise UsageError("Halo.close", "an exchange is under way", "call finish() first")
        self._is_closed = True
        self._known.clear()
        if self._under_way is not None:
            self._give_up()
            return
        for bound in self._bound.values():
            bound.messages.close()
        self._bound.clear()
        self._known.clear()
        if self._near is not None:
            self._near.close()
        self._traffic.close()

    def _give_up(self) -> None:
        """End without the others.  Local."""
        self._is_closed = True
        self._traffic.abandon(self._under_way, self._stages, dict(self._bound), self._near)
        self._bound.clear()
        self._known.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; after an exception no rank is waited for."""
        del error, traceback
        if kind is None:
            self.close()
        elif not self._is_closed and not forked_child.is_child():
            self._give_up()

    def __repr__(self) -> str:
        return f"Halo({self.layout}, {list(self.widths)}, corners={self.corners})"


def _with_short_runs(
    ghosts: Ghosts, rank: int, copies: Sequence[GhostCopy], *, takes: bool
) -> set[int]:
    """Give the peers whose messages have so short runs that they are copied twice.

    The library copies long runs once, from the memory of one process to that of
    the other.  Both ends decide alike.
    """
    found = set()
    for peer, some in groupby(copies, lambda one: one.peer):
        listed = list(some)
        owner, holder = (peer, rank) if takes else (rank, peer)
        count = sum(cells(one.ghost) for one in listed)
        if count < LONG or ghosts.shortest_run(owner, holder, listed) < LONG_RUN:
            found.add(peer)
    return found


def _agreed_ghosts(
    comm: MPI.Intracomm, layout: Any, width: Any, periodic: Any, *, corners: Any
) -> Ghosts:
    """Read the arguments; raise on all ranks what one of them cannot use."""
    ghosts, problem = None, None
    try:
        ghosts = read_ghosts(layout, width, periodic, corners)
        ghosts.layout.mesh.check_comm("Halo", comm)
    except UsageError as wrong:
        problem = wrong
    digest, said = (0, "") if ghosts is None else (digest_of(ghosts), described(ghosts))
    agree(comm, "Halo", problem, digest, said)
    assert ghosts is not None
    return ghosts
