"""Messages between interiors and ghosts, bound to the memory of an array.

One message a pair of ranks carries all that one needs of the other.  Each is
a persistent request over the memory where the cells lie: a datatype lists
them, so nothing is packed and nothing is allocated in a step.  Messages of a
pair stay in order, so a receive takes any tag: the tag tells the type of the
elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.comms.buffers.strided_block import StridedBlock, of_layout
from closeranks.partitioning.halo.array_address import address_of
from closeranks.partitioning.halo.element_kind import kind_of
from closeranks.partitioning.halo.ghost_stage import Boxes, Piece, staged
from closeranks.partitioning.layout.box import Bounds, shape_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from closeranks.partitioning.halo.ghosts import GhostCopy

#: Datatypes whose signature stands for elements of so many bytes, whatever they mean.
_UNITS: Final = {2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.INT64_T}
#: More bytes than any array has: mpi4py asks how long the memory behind an address is.
_REACH: Final = 1 << 46


class _Cells(NamedTuple):
    """Cells of one message: where they begin, how many entries of which datatype."""

    start: int
    entries: int
    datatype: MPI.Datatype


def by_peer(transfers: Sequence[GhostCopy], *, ghosts: bool) -> list[Boxes]:
    """Gather the boxes of each message.

    Parameters
    ----------
    transfers : sequence of GhostCopy
        Ordered by peer.
    ghosts : bool
        Whether the ghosts are wanted, else their sources.

    Returns
    -------
    list of (int, list of boxes)
        One a peer.
    """
    return [
        (peer, [one.ghost if ghosts else one.source for one in some])
        for peer, some in groupby(transfers, lambda one: one.peer)
    ]


class BoundMessages:
    """Persistent requests that move cells of one array.

    Local.  The array is not kept alive: the requests name its memory, and are
    started only for an array that lies there.  Where a stride is negative, cells
    are packed: Open MPI 5.0.11 sends vectors that run backwards without a gap
    forwards.

    Parameters
    ----------
    comm : MPI.Intracomm
        Carries them, and nothing else.
    array : ndarray
        Holds the cells.

    Attributes
    ----------
    requests : list of MPI.Prequest
        All of them.
    statuses : list of MPI.Status
        What a wait for them tells, one a request.
    received : list of (MPI.Status, int)
        Statuses of receives, and their senders.
    kind : int
        Tag of messages with elements of the array's type.  An earlier wait that
        was left has had the message of a status with `MPI.ANY_TAG`.
    packs : bool
        Whether `gather` and `scatter` have work.
    """

    def __init__(self, comm: MPI.Intracomm, array: NDArray[Any]) -> None:
        self._comm, self._strides, self._dtype = comm, array.strides, array.dtype
        self._address = address_of(array)
        self._unit = _UNITS.get(array.itemsize, MPI.BYTE)
        self.packs = min(array.strides, default=0) < 0
        self._gathered: list[Piece] = []
        self._scattered: list[Piece] = []
        self.requests: list[MPI.Prequest] = []
        self.statuses: list[MPI.Status] = []
        self.received: list[tuple[MPI.Status, int]] = []
        self.kind = kind_of(array.dtype)
        self._types: list[MPI.Datatype] = []

    def receive(self, messages: Sequence[Boxes]) -> None:
        """Add a receive into the array from each peer.

        Parameters
        ----------
        messages : sequence of (int, list of boxes)
            Peer -> boxes that take its message, in order.
        """
        for peer, boxes in messages:
            if self.packs:
                buffer, pieces = staged(boxes, self._dtype)
                self._scattered += pieces
                self.receive_buffer(peer, buffer)
            else:
                self._receive(self._message(boxes), peer)

    def send(self, messages: Sequence[Boxes]) -> None:
        """Add a send from the array to each peer.

        Parameters
        ----------
        messages : sequence of (int, list of boxes)
            Peer -> boxes of its message, in order.
        """
        for peer, boxes in messages:
            if self.packs:
                buffer, pieces = staged(boxes, self._dtype)
                self._gathered += pieces
                message = self._whole(buffer)
            else:
                message = self._message(boxes)
            self.requests.append(self._comm.Send_init(message, peer, self.kind))
            self.statuses.append(MPI.Status())

    def receive_buffer(self, peer: int, buffer: NDArray[Any]) -> None:
        """Add a receive into memory that is no part of the array.

        Parameters
        ----------
        peer : int
            The sender.
        buffer : ndarray
            Contiguous; takes the whole message.  Kept alive.
        """
        self._receive(self._whole(buffer), peer)

    def _receive(self, message: list[Any], peer: int) -> None:
        self.requests.append(self._comm.Recv_init(message, peer, MPI.ANY_TAG))
        self.statuses.append(MPI.Status())
        self.received.append((self.statuses[-1], peer))

    def other_kind(self) -> int | None:
        """Give a rank whose message had elements of another type; None if none had.

        Local, after a wait that has raised: only some messages have come.

        Returns
        -------
        int or None
            The first such rank.
        """
        for status, peer in self.received:
            if status.tag not in (self.kind, MPI.ANY_TAG) and not _is_missing(status):
                return peer
        return None

    def gather(self, array: NDArray[Any]) -> None:
        """Pack what is sent, where the datatypes do not say it.

        Parameters
        ----------
        array : ndarray
            Lies where the one lay that the requests were made for.
        """
        for box, memory in self._gathered:
            np.copyto(memory, array[box])

    def scatter(self, array: NDArray[Any]) -> None:
        """Unpack what has come, where the datatypes have not done it.

        Parameters
        ----------
        array : ndarray
            As for `gather`.
        """
        for box, memory in self._scattered:
            np.copyto(array[box], memory)

    def _whole(self, buffer: NDArray[Any]) -> list[Any]:
        """Give a contiguous array as mpi4py takes a message."""
        return [buffer.view(np.uint8), buffer.nbytes // self._unit.Get_size(), self._unit]

    def _message(self, boxes: Sequence[Bounds]) -> list[Any]:
        """Give boxes of the array as mpi4py takes a message."""
        itemsize = self._dtype.itemsize
        cells = self._described([_block(box, self._strides, itemsize) for box in boxes])
        memory = MPI.buffer.fromaddress(self._address + cells.start, _REACH)
        return [memory, cells.entries, cells.datatype]

    def _described(self, blocks: Sequence[StridedBlock]) -> _Cells:
        """Describe the cells of a message as entries of a datatype."""
        unit, first = self._unit, blocks[0]
        if len(blocks) == 1 and not first.counts:
            return _Cells(first.start, first.run // unit.Get_size(), unit)
        made = [_strided(one, unit) for one in blocks]
        if len(made) > 1:
            places = [one.start - first.start for one in blocks]
            parts = made
            made = [MPI.Datatype.Create_struct([1] * len(parts), places, parts)]
            for part in parts:
                part.Free()
        self._types.append(made[0].Commit())
        return _Cells(first.start, 1, made[0])

    def close(self) -> None:
        """Free requests and datatypes; none is under way.  Local."""
        for request in self.requests:
            request.Free()
        for datatype in self._types:
            datatype.Free()
        self.requests, self._types = [], []


def _is_missing(status: MPI.Status) -> bool:
    """Tell whether no message has come, not even one that was too long."""
    came = (MPI.SUCCESS, MPI.ERR_TRUNCATE)
    return MPI.Get_error_class(status.error) not in came


def _block(box: Bounds, strides: tuple[int, ...], itemsize: int) -> StridedBlock:
    """Describe a box of an array, from the array's first element on."""
    start = sum(low * stride for (low, _), stride in zip(box, strides, strict=True))
    return of_layout(shape_of(box), strides, itemsize).shifted(start)


def _strided(block: StridedBlock, unit: MPI.Datatype) -> MPI.Datatype:
    """Make a datatype of a block; it begins with the block's first run."""
    length, dimensions = block.run // unit.Get_size(), list(block.dimensions)
    if not dimensions:
        return unit.Create_contiguous(length)
    count, stride = dimensions.pop()
    made = unit.Create_hvector(count, length, stride)
    while dimensions:
        count, stride = dimensions.pop()
        inner, made = made, made.Create_hvector(count, 1, stride)
        inner.Free()
    return made
