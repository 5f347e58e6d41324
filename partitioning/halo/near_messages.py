"""Messages of an exchange inside a node: rings of slots in shared memory.

For each rank of its node that has cells of its own as ghosts, a rank has a
ring of slots, and two counters.  In a step it copies these cells to the next
slot and tells the step; the other rank copies them to its ghosts, and tells
that it has read them.  A ring is so long that a slot's lines have left the
second-level caches before it is written again: the lines of two slots in turn
would have to be taken back from the reader first, which took twice as long as
the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from closeranks.comms.buffers.packing import Copier, packer
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at
from closeranks.comms.shm.shared_file import share
from closeranks.comms.wait import is_crowded
from closeranks.partitioning.halo.array_address import view_at
from closeranks.partitioning.layout.box import cells

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    from closeranks.partitioning.halo.ghost_stage import Boxes

#: Longest element: longer ones go by messages.
MOST_ITEM: Final = 16
#: Slots of a ring: at least two of the longest elements, else as many as fit.
LEAST_SLOTS: Final = 2
RING_BYTES: Final = 2 * 1024 * 1024
MOST_SLOTS: Final = 16
#: Bytes between counters: two lines, since processors fetch lines in pairs.
_APART: Final = 128
_LINE: Final = 64
_PAGE: Final = 4096
#: How often a wait looks before it gives the thread back, where ranks have cores of their own.
_LOOKS: Final = 2000
_KERNELS: Final = "closeranks.partitioning.halo.near_kernels"

#: Waits until a function gives true, or raises.
Wait = Callable[[Callable[[], bool]], None]
#: Ring -> slot -> the bytes of each box.
_Slots = list[list[list["NDArray[np.uint8]"]]]


class _Kernel(Protocol):
    def __call__(self, *numbers: int) -> bool: ...


@cache
def _kernel(name: str, arguments: int) -> _Kernel:
    return function_at(code_cache.address_of(_KERNELS, name), arguments)


class _Ring(NamedTuple):
    """Slots of one pair of ranks.

    Attributes
    ----------
    told, read : int
        Addresses of the counters: of the owner, of the holder.
    memory : ndarray of uint8
        The slots.
    sizes : tuple of int
        Cells of each box of a message.
    """

    told: int
    read: int
    memory: NDArray[np.uint8]
    sizes: tuple[int, ...]

    def slots(self, itemsize: int) -> list[list[NDArray[np.uint8]]]:
        """Divide the memory: slot -> the bytes of each box."""
        whole = _slot_bytes(sum(self.sizes), itemsize)
        found = []
        for start in range(0, len(self.memory) - whole + 1, whole)[:MOST_SLOTS]:
            ends = start + itemsize * np.cumsum((0, *self.sizes))
            found.append([self.memory[a:b] for a, b in pairwise(ends)])
        return found


class NearCells(NamedTuple):
    """Cells of one array: how each box of each message is copied, and where it lies.

    Attributes
    ----------
    gathered, scattered : list of list of (copier, ndarray)
        Ring -> boxes.
    """

    itemsize: int
    gathered: list[list[tuple[Copier, NDArray[Any]]]]
    scattered: list[list[tuple[Copier, NDArray[Any]]]]


class NearMessages:
    """What ranks of a node exchange through its memory.

    Collective over ``node`` to make.

    Parameters
    ----------
    node : MPI.Intracomm
        Ranks that share memory.
    ranks : sequence of int
        Their numbers in the mesh.
    received, sent : sequence of (int, list of boxes)
        Peer -> boxes; peers elsewhere are left out.

    Attributes
    ----------
    peers : frozenset of int
        Ranks that get no other messages.

    Raises
    ------
    Unavailable
        On all ranks, if node memory has no room.
    """

    def __init__(
        self,
        node: MPI.Intracomm,
        ranks: Sequence[int],
        received: Sequence[Boxes],
        sent: Sequence[Boxes],
    ) -> None:
        self.peers = frozenset(ranks)
        self._received = [one for one in received if one[0] in self.peers]
        self._sent = [one for one in sent if one[0] in self.peers]
        length, places = _places(self._sent)
        wanted = node.allgather((length, places))
        starts = np.cumsum([0, *(one[0] for one in wanted)]).tolist()
        own = (starts[node.rank], length)
        self._file = share(node, max(_PAGE, starts[-1]), own=[own] if length else ())
        begins = {
            rank: (start, found[1])
            for rank, start, found in zip(ranks, starts, wanted, strict=False)
        }
        me = ranks[node.rank]
        self._out = [self._ring(begins[me], peer, boxes) for peer, boxes in self._sent]
        self._in = [self._ring(begins[peer], me, boxes) for peer, boxes in self._received]
        self._told = _numbers([ring.told for ring in self._out])
        self._read = _numbers([ring.read for ring in self._in])
        self._slots: dict[int, tuple[_Slots, _Slots]] = {}
        self._step, self._itemsize = 0, 0
        self._looks = 0 if is_crowded() else _LOOKS
        self._tell, self._has_come = _kernel("tell", 2), _kernel("has_come", 3)

    def _ring(self, begin: tuple[int, dict[int, int]], holder: int, boxes: Any) -> _Ring:
        """Find the ring of an owner for a holder."""
        start, places = begin
        at, sizes = start + places[holder], tuple(map(cells, boxes))
        address = self._file.array.ctypes.data + at
        memory = self._file.array[at + 2 * _APART : at + _ring_bytes(sum(sizes))]
        return _Ring(address, address + _APART, memory, sizes)

    def bind(self, array: NDArray[Any]) -> NearCells:
        """Prepare the copies of an array, which is not kept alive.  Local.

        Parameters
        ----------
        array : ndarray
            Padded; elements of at most `MOST_ITEM` bytes.

        Returns
        -------
        NearCells
            For all arrays that lie there.
        """
        gathered = [[_cells(array, box, 0) for box in boxes] for _, boxes in self._sent]
        scattered = [[_cells(array, box, 1) for box in boxes] for _, boxes in self._received]
        return NearCells(array.itemsize, gathered, scattered)

    def _slots_of(self, itemsize: int) -> tuple[_Slots, _Slots]:
        found = self._slots.get(itemsize)
        if found is None:
            out, into = ([one.slots(itemsize) for one in some] for some in (self._out, self._in))
            found = self._slots[itemsize] = out, into
        return found

    def lay(self, bound: NearCells, wait: Wait) -> None:
        """Begin a step: copy what others need to the next slots, and tell them.

        Parameters
        ----------
        bound : NearCells
            The array's.
        wait : callable
            Waits for a rank that is two steps behind or more.
        """
        step, rings = self._step + 1, self._slots_of(bound.itemsize)[0]
        same = bound.itemsize == self._itemsize
        for ring, slots, boxes in zip(self._out, rings, bound.gathered, strict=True):
            # Slots of elements of another length lie elsewhere: all must have been read.
            free = step - (len(slots) if same else 1)
            if free > 0:
                self._await(ring.read, free, wait)
            for (copy, view), data in zip(boxes, slots[step % len(slots)], strict=True):
                copy(data, view)
        self._step, self._itemsize = step, bound.itemsize
        self._tell(self._told.ctypes.data, step)

    def take(self, bound: NearCells, wait: Wait) -> None:
        """End a step: copy what others have laid to the ghosts.

        May be called again if ``wait`` has raised.

        Parameters
        ----------
        bound : NearCells
            The array's.
        wait : callable
            Waits for a rank that has not begun the step.
        """
        rings = self._slots_of(bound.itemsize)[1]
        for ring, slots, boxes in zip(self._in, rings, bound.scattered, strict=True):
            self._await(ring.told, self._step, wait)
            for (copy, view), data in zip(boxes, slots[self._step % len(slots)], strict=True):
                copy(view, data)
        self._tell(self._read.ctypes.data, self._step)

    def _await(self, counter: int, step: int, wait: Wait) -> None:
        if not self._has_come(counter, step, self._looks):
            wait(lambda: self._has_come(counter, step, 0))

    def close(self) -> None:
        """Let go of the memory.  Local, harmless twice."""
        self._slots.clear()
        self._out, self._in = [], []
        self._file.close()


def _cells(array: NDArray[Any], box: Any, way: int) -> tuple[Copier, NDArray[Any]]:
    """Choose how a box is copied: 0 to a slot, 1 from one."""
    view = view_at(array, box)
    return packer(view.shape, view.strides, view.itemsize)[way], view


def _slot_bytes(count: int, itemsize: int) -> int:
    """Give the bytes of a slot: whole lines."""
    return -(-count * itemsize // _LINE) * _LINE


def _ring_bytes(count: int) -> int:
    """Give the bytes of a ring with its counters, for messages of so many cells."""
    most = _slot_bytes(count, 8) * MOST_SLOTS
    least = _slot_bytes(count, MOST_ITEM) * LEAST_SLOTS
    return 2 * _APART + max(least, min(most, RING_BYTES))


def _places(sent: Sequence[Boxes]) -> tuple[int, dict[int, int]]:
    """Lay out the rings of a rank: bytes in all, and holder -> where its ring begins."""
    places, end = {}, 0
    for peer, boxes in sent:
        places[peer] = end
        end += -(-_ring_bytes(sum(map(cells, boxes))) // _APART) * _APART
    return -(-end // _PAGE) * _PAGE, places


def _numbers(counters: list[int]) -> NDArray[np.int64]:
    """Write counters as `tell` reads them."""
    return np.array([len(counters), *counters], np.int64)
