"""Arrays in memory that all ranks of a node have mapped: `Communicator.empty`.

Kernels read and write them in place, see
`closeranks.collectives.shm.data_places`.  One record of the process lists all
arrays by row.  The table of each node memory holds the arrays that all ranks
of that memory have mapped.

The first pages of the file behind an array hold two marks for every rank: that
the rank has dropped its array, and that it has had one.  The rank that drops
the last array gives the memory back.  Survivors set the marks of ranks that
have died, see `release_lost`.
"""

from __future__ import annotations

import math
import operator
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.shm.segment_layout import INSIDE
from closeranks.comms.shm.shared_file import SharedFile, share
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: So many may live in a process at once.
MOST: Final = 4096
#: More bytes than a name can count, see `closeranks.collectives.shm.data_places`.
_LIMIT: Final = 1 << INSIDE
#: Where arrays of different ranks start: on pages of their own.
_PAGE: Final = 4096


class Reach:
    """Which arrays all ranks of a node memory can reach, as kernels read it.

    Parameters
    ----------
    node : MPI.Intracomm
        These ranks.

    Attributes
    ----------
    address : int
        Of int64: how many rows there are, then each row's first address and the
        one behind the last; both are 0 where there is no array.
    """

    def __init__(self, node: MPI.Intracomm) -> None:
        self._group = node.Get_group()
        self._table = np.zeros(1 + 2 * MOST, np.int64)
        self.address: int = self._table.ctypes.data

    def note(self, row: int, mapped: Mapped) -> None:
        """Enter an array, if all ranks have mapped it.  Local."""
        ranks = self._group.Translate_ranks(None, mapped.group)
        if MPI.UNDEFINED not in ranks:
            self._table[1 + 2 * row : 3 + 2 * row] = mapped.first, mapped.last
            self._table[0] = max(self._table[0], row + 1)

    def strike(self, row: int) -> None:
        """Forget an array.  Local."""
        self._table[1 + 2 * row : 3 + 2 * row] = 0

    def close(self) -> None:
        """Let go of the group of ranks.  Local."""
        with _LOCK:
            _REACHES.discard(self)
        self._group.Free()


class Mapped(NamedTuple):
    """One file that holds an array of every rank.

    Attributes
    ----------
    file : SharedFile
        Marks first, then the arrays.
    group : MPI.Group
        The ranks that have mapped it.
    first, last : int
        Its address, and the one behind its last byte.
    """

    file: SharedFile
    group: MPI.Group
    first: int
    last: int

    def is_dropped(self) -> bool:
        """Whether no rank has an array in it any more."""
        return _nobody_has(_marks(self.file, self.group.size))


#: All arrays that this process has mapped, by row; rows that are about to be mapped; the tables to
#: keep up to date; the lock of all three, since any thread may make arrays.  A thread that holds
#: the lock waits for no other rank.
_MAPPED: Final[dict[int, Mapped]] = {}
_PROMISED: Final[set[int]] = set()
_REACHES: Final[weakref.WeakSet[Reach]] = weakref.WeakSet()
_LOCK: Final = threading.RLock()


def reach_of(node: MPI.Intracomm) -> Reach:
    """Keep a table of the arrays that all ranks of a node memory can reach.

    Local.

    Parameters
    ----------
    node : MPI.Intracomm
        These ranks.

    Returns
    -------
    Reach
        Up to date until it is closed.
    """
    made = Reach(node)
    with _LOCK:
        for row, mapped in _MAPPED.items():
            made.note(row, mapped)
        _REACHES.add(made)
    return made


def make(
    plain: MPI.Intracomm, node: MPI.Intracomm, shape: int | tuple[int, ...], dtype: DTypeLike
) -> NDArray[Any]:
    """Make an array, see `empty`.

    Collective over ``plain``.

    Parameters
    ----------
    plain : MPI.Intracomm
        All ranks that make one.
    node : MPI.Intracomm
        The ranks of this node.
    shape : int or tuple of int
        Shape of this rank's array.
    dtype : dtype
        Its element.

    Returns
    -------
    ndarray
        Zeros.
    """
    sizes, kind = _checked(plain, shape, dtype)
    nbytes = math.prod(sizes) * kind.itemsize
    memory, starts = _made(plain, node, nbytes)
    start = starts[node.rank]
    return memory[start : start + nbytes].view(kind).reshape(sizes)


def make_window(plain: MPI.Intracomm, node: MPI.Intracomm, nbytes: int) -> list[NDArray[np.uint8]]:
    """Make an array of every rank of a node that all of them read.

    Collective over ``plain``.

    Parameters
    ----------
    plain : MPI.Intracomm
        All ranks that make one.
    node : MPI.Intracomm
        The ranks of this node.
    nbytes : int
        Bytes of each array, the same on all ranks.

    Returns
    -------
    list of ndarray of uint8
        By rank of ``node``; each rank writes its own.  The memory is given back
        when all ranks have dropped all of them.

    Raises
    ------
    Unavailable
        On all ranks, if a node has no memory left to share.
    """
    memory, starts = _made(plain, node, nbytes)
    return [memory[start : start + nbytes] for start in starts]


def _made(
    plain: MPI.Intracomm, node: MPI.Intracomm, nbytes: int
) -> tuple[NDArray[np.uint8], list[int]]:
    """Make memory for an array of each rank, and say where these begin."""
    wanted = node.allgather(_whole(nbytes))
    starts = list(accumulate([_whole(2 * node.size), *wanted]))
    rank = node.rank
    own = (0, starts[0] * (rank == 0)), (starts[rank], wanted[rank])
    with _agreed_row(node) as row:
        file, failed = _mapped(node, row, starts.pop(), own)
    try:
        _raise_first(plain, failed)  # when all have entered it
    except BaseException:  # the library's, too: a rank may have died
        if file is not None:
            _drop(file, rank, node.size, os.getpid())
        raise
    assert file is not None
    memory = file.array
    dropped = weakref.finalize(memory, _drop, file, rank, node.size, os.getpid())
    dropped.atexit = False
    return memory, starts


def _checked(
    plain: MPI.Intracomm, shape: int | tuple[int, ...], dtype: DTypeLike
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Give shape and element as they are meant, or raise on all ranks."""
    sizes: tuple[int, ...] = ()
    kind: np.dtype[Any] = np.dtype(np.uint8)
    problem = None
    try:
        kind = np.dtype(dtype)
        sizes = tuple(map(operator.index, shape if isinstance(shape, tuple | list) else (shape,)))
        wrong = kind.hasobject or kind.subdtype is not None or not kind.itemsize
        wrong = wrong or min(sizes, default=0) < 0 or math.prod(sizes) * kind.itemsize >= _LIMIT
    except Exception:  # what NumPy takes for a type may run anybody's code
        wrong = True
    if wrong:
        said = f"shape {shape!r}, dtype {dtype!r} on rank {plain.rank}"
        problem = UsageError("empty", said, "sizes from 0 on, elements of no objects")
    _raise_first(plain, problem)
    return sizes, kind


def _raise_first(plain: MPI.Intracomm, problem: UsageError | Unavailable | None) -> None:
    """Raise on all ranks what the first one met."""
    for found in plain.allgather(problem):
        if found is not None:
            raise found


def _mapped(
    node: MPI.Intracomm, row: int, nbytes: int, own: tuple[tuple[int, int], ...]
) -> tuple[SharedFile | None, Unavailable | None]:
    """Map a file and enter it, or say why not, alike on all ranks of a node."""
    if row >= MOST:
        remedy = "drop some, or cut them out of a larger one"
        return None, Unavailable(f"more than {MOST} arrays of empty()", remedy)
    if nbytes >= _LIMIT:
        return None, Unavailable(f"arrays of {nbytes} bytes on a node", "use less than 16 TiB")
    try:
        file = share(node, nbytes, own=own)
    except Unavailable as error:
        return None, error
    _marks(file, node.size)[1, node.rank] = 1  # before anybody could take it for dropped
    first = file.array.ctypes.data
    with _LOCK:
        _MAPPED[row] = Mapped(file, node.Get_group(), first, first + nbytes)
        for reach in _REACHES:
            reach.note(row, _MAPPED[row])
    return file, None


def let_go() -> None:
    """Unmap what no rank has an array in.

    Local; to be called while nothing is in flight that might still read it.
    """
    with _LOCK:
        for row in [row for row, mapped in _MAPPED.items() if mapped.is_dropped()]:
            gone = _MAPPED.pop(row)
            for reach in _REACHES:
                reach.strike(row)
            gone.group.Free()
            gone.file.close()


def release_lost(before: MPI.Intracomm, left: MPI.Intracomm) -> None:
    """Release the arrays of ranks that have died.

    Local; called when no survivor has a call in flight that uses them.

    Parameters
    ----------
    before : MPI.Intracomm
        The ranks that were there before.
    left : MPI.Intracomm
        All ranks that live, and maybe others.
    """
    everybody, living = before.Get_group(), left.Get_group()
    dead = MPI.Group.Difference(everybody, living)
    everybody.Free()
    living.Free()
    with _LOCK:
        for mapped in _MAPPED.values():
            for rank in MPI.Group.Translate_ranks(dead, None, mapped.group):
                if rank != MPI.UNDEFINED:
                    _drop(mapped.file, rank, mapped.group.size, os.getpid())
    dead.Free()


def _drop(file: SharedFile, rank: int, size: int, process: int) -> None:
    """Note that a rank has no array in a file; the last one gives the pages back."""
    if os.getpid() != process:
        return  # a forked child had a copy
    marks = _marks(file, size)
    marks[0, rank] = 1
    if _nobody_has(marks):
        file.discard(_whole(2 * size))


def _marks(file: SharedFile, size: int) -> NDArray[np.uint8]:
    """Give two rows of marks: ranks that dropped an array, ranks that had one.

    A rank that lives, and that an error kept from mapping the file, has had none.
    """
    return file.array[: 2 * size].reshape(2, size)


def _nobody_has(marks: NDArray[np.uint8]) -> bool:
    """Whether no rank has an array."""
    dropped, had = marks
    return bool((dropped >= had).all())


@contextmanager
def _agreed_row(node: MPI.Intracomm) -> Iterator[int]:
    """Find the first row no rank uses; in a block it is kept from threads."""
    while True:
        with _LOCK:
            used = sum(1 << row for row in _MAPPED.keys() | _PROMISED)
        row = _lowest_free(node.allgather(used))
        with _LOCK:
            mine = row not in _MAPPED.keys() | _PROMISED
            if mine:
                _PROMISED.add(row)
        try:
            if all(node.allgather(mine)):
                yield row
                return
        finally:
            if mine:
                _PROMISED.discard(row)


def _lowest_free(used: Iterable[int]) -> int:
    """Find the first row that nobody uses; rows as bits."""
    taken = 0
    for rows in used:
        taken |= rows
    return (~taken & (taken + 1)).bit_length() - 1


def _whole(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // _PAGE) * _PAGE
