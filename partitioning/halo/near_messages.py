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

from closeranks.comms.buffers.packing import Copier, Packer, packer
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at
from closeranks.comms.shm.shared_file import share
from closeranks.partitioning.halo.array_address import view_at
from closeranks.partitioning.halo.element_kind import kind_of
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
_UNEVEN: Final = _PAGE // 2 + _LINE
#: How often a wait looks before it gives the thread back, where ranks have cores of their own.
_LOOKS: Final = 2000
_KERNELS: Final = "closeranks.partitioning.halo.near_kernels"

#: Waits in a call until a function gives true, or raises.
Wait = Callable[[str, Callable[[], bool]], None]


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
    kinds : ndarray, shape (MOST_SLOTS,), dtype uint16
        Step modulo its length -> type of the elements that the owner has laid.
    memory : ndarray of uint8
        The slots.
    sizes : tuple of int
        Cells of each box of a message.
    """

    told: int
    read: int
    kinds: NDArray[np.uint16]
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


class _Copies(NamedTuple):
    """Copies of one message of an array: slot -> arguments of each box's copier."""

    peer: int
    counter: int
    kinds: NDArray[np.uint16]
    length: int
    slots: list[list[tuple[Copier, NDArray[Any], NDArray[Any]]]]


class NearCells(NamedTuple):
    """Copies of one array: of what it gives, and of what it takes."""

    itemsize: int
    kind: int
    given: list[_Copies]
    taken: list[_Copies]


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
    spins : bool
        Whether each rank has a core of its own: a wait may look for a while.

    Attributes
    ----------
    givers, takers : frozenset of int
        Ranks whose cells come, and go, by no other way.

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
        *,
        spins: bool = True,
    ) -> None:
        self._received = [one for one in received if one[0] in ranks]
        self._sent = [one for one in sent if one[0] in ranks]
        self.givers = frozenset(peer for peer, _ in self._received)
        self.takers = frozenset(peer for peer, _ in self._sent)
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
        self._counters = [
            np.array([len(some), *some], np.int64)
            for some in ([ring.told for ring in self._out], [ring.read for ring in self._in])
        ]
        self._told, self._read = (some.ctypes.data for some in self._counters)
        self._step, self._taken, self._itemsize = 0, 0, 0
        self._looks = _LOOKS if spins else 0
        self._tell, self._has_come = _kernel("tell", 2), _kernel("has_come", 3)

    def _ring(self, begin: tuple[int, dict[int, int]], holder: int, boxes: Any) -> _Ring:
        """Find the ring of an owner for a holder."""
        start, places = begin
        at, sizes = start + places[holder], tuple(map(cells, boxes))
        address = self._file.array.ctypes.data + at
        kinds = self._file.array[at + 8 : at + 8 + 2 * MOST_SLOTS].view(np.uint16)
        memory = self._file.array[at + 2 * _APART : at + _ring_bytes(sum(sizes))]
        return _Ring(address, address + _APART, kinds, memory, sizes)

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
        given, taken = [], []
        for ring, (peer, boxes) in zip(self._out, self._sent, strict=True):
            ways, slots = _copiers(array, boxes), ring.slots(array.itemsize)
            steps = [
                [(way.gather, data, view) for (way, view), data in zip(ways, slot, strict=True)]
                for slot in slots
            ]
            given.append(_Copies(peer, ring.read, ring.kinds, len(slots), steps))
        for ring, (peer, boxes) in zip(self._in, self._received, strict=True):
            ways, slots = _copiers(array, boxes), ring.slots(array.itemsize)
            steps = [
                [(way.scatter, view, data) for (way, view), data in zip(ways, slot, strict=True)]
                for slot in slots
            ]
            taken.append(_Copies(peer, ring.told, ring.kinds, len(slots), steps))
        return NearCells(array.itemsize, kind_of(array.dtype), given, taken)

    def lay(self, bound: NearCells, wait: Wait, operation: str) -> None:
        """Begin a step: copy what others need to the next slots, and tell them.

        Parameters
        ----------
        bound : NearCells
            The array's.
        wait : callable
            Waits for a rank that has not read what is to be overwritten.
        operation : str
            The call, for ``wait``.
        """
        step = self._step + 1
        if bound.itemsize != self._itemsize:
            # Slots of elements of another length lie elsewhere: all must have been read.
            for one in bound.given:
                self._await(one.counter, step - 1, wait, operation)
            self._itemsize = bound.itemsize
        for _, read, kinds, length, slots in bound.given:
            if step > length and not self._has_come(read, step - length, self._looks):
                self._await(read, step - length, wait, operation)
            kinds[step % MOST_SLOTS] = bound.kind
            for copy, data, view in slots[step % length]:
                copy(data, view)
        self._step = step
        self._tell(self._told, step)

    def take(self, bound: NearCells, wait: Wait, operation: str) -> int | None:
        """End a step: copy what others have laid to the ghosts.

        May be called again, if ``wait`` or what follows has raised.

        Parameters
        ----------
        bound : NearCells
            The array's.
        wait : callable
            Waits for a rank that has not begun the step.
        operation : str
            The call, for ``wait``.

        Returns
        -------
        int or None
            A rank that has laid elements of another type: nothing of it was copied.
        """
        step = self._step
        if self._taken != step:  # else owners may write to these slots again
            for peer, told, kinds, length, slots in bound.taken:
                if not self._has_come(told, step, self._looks):
                    self._await(told, step, wait, operation)
                if kinds[step % MOST_SLOTS] != bound.kind:
                    return peer
                for copy, view, data in slots[step % length]:
                    copy(view, data)
            self._taken = step
        self._tell(self._read, step)
        return None

    def _await(self, counter: int, step: int, wait: Wait, operation: str) -> None:
        wait(operation, lambda: self._has_come(counter, step, 0))

    def close(self) -> None:
        """Let go of the memory.  Local, harmless twice."""
        self._out, self._in = [], []
        self._file.close()


def _copiers(array: NDArray[Any], boxes: Sequence[Any]) -> list[tuple[Packer, NDArray[Any]]]:
    """Choose how each box is copied, and view it."""
    views = [view_at(array, box) for box in boxes]
    return [(packer(view.shape, view.strides, view.itemsize), view) for view in views]


def _slot_bytes(count: int, itemsize: int) -> int:
    """Give the bytes of a slot: whole lines; long ones begin anywhere in a page.

    Where source and target lie alike in their pages, a processor takes what it
    loads for what it has just stored.
    """
    nbytes = -(-count * itemsize // _LINE) * _LINE
    return nbytes + _UNEVEN * (nbytes >= _PAGE)


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
