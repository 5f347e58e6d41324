"""Where the machine code of shortcuts finds what it knows.

What stands here is compiled into
`closeranks.collectives.fastpath.shortcut_code`.

Known sizes: which calls are the library's, and which a kernel's.

What is known stands in two places: here, until too many others have come, and
in a table that machine code reads, where a size has one row and the last to
come takes it.

What the machine code of shortcuts is told about the interpreter and about MPI.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.arguments.native_handover import UNREADABLE
from closeranks.comms.buffers.datatype import element
from closeranks.comms.jit.python_builtin import address_in_python

if TYPE_CHECKING:
    from closeranks.collectives.arguments.call_key import CallKey
    from closeranks.collectives.fastpath.shm_call import ShmCall


#: Places in a record (int64). Functions of the interpreter.
VECTORCALL, GETATTR, AS_SSIZE, INCREF, DECREF, CLEAR, MATCHES, SAVE, RESTORE = range(9)
VIEW, UNVIEW = range(9, 11)
FETCH, NORMALIZE, TRACE, PUT_BACK = range(11, 15)
#: Objects: names, the errors that send a call the long way, None, types, MPI's constants,
#: the library's errors.
NBYTES, ITEMSIZE, ROOT_NAME, OP_NAME, UNREADABLE_WORD, NONE, LIST, TUPLE = range(15, 23)
ARRAY, IN_PLACE, SUM, EXCEPTION = range(23, 27)
#: Address of the plain datatypes, each with its bytes and NumPy's type of them or 0; 0 ends them.
PLAIN: Final = 27
PLAIN_ROW: Final = 3
#: The communicator's size and rank.
MEMBERS, PLACE = range(28, 30)
#: The rule: which argument tells the size, which has as many blocks as members,
#: which has equal bytes, which are vectors, which is a vector's own block, which
#: must be given, which is the root; -1 for none. BY_TOTAL: a vector tells the size.
#: BLOCKED: the size is that of as many blocks as members.
#: BUFFERS: how many arguments are messages, the first ones.
#: MOVES: both are to be of one type, which the library does not look at.
SIZED, WHOLE, EQUAL, VECTOR, SECOND, PART, GIVEN, ROOT, BY_TOTAL = range(30, 39)
BLOCKED, BUFFERS, MOVES = range(39, 42)
#: Address of the known sizes, `SLOTS` rows of them.
KNOWN: Final = 42
#: The argument that goes the long way where it is `IN_PLACE`, because somebody has to keep
#: what its buffer holds; -1 while nobody has to.
KEPT: Final = 43
#: A Python function that raises what the user is told of an error of the library; room for
#: such an error: type, value and traceback.
EXPLAIN: Final = 44
ERROR: Final = 45
#: Room for a look at an object's buffer, `Py_buffer` of 80 bytes.
SEEN: Final = 48
#: What of it is read: where the memory is, how long, and its format.
SEEN_BUF, SEEN_LEN, SEEN_FORMAT = SEEN, SEEN + 2, SEEN + 5
#: Address of NumPy's types by the letter of a buffer's format, 128 of them, 0 for none.
LETTERS: Final = 58
#: Addresses of the numbers of calls that have begun, and of those of the library under way.
BEGUN_AT, INSIDE_AT = range(59, 61)
RECORD: Final = 61
#: How it is looked at: PyBUF_FULL_RO, as by memoryview.
SHOWN: Final = 0x11C
SLOTS: Final = 256

#: Columns of a row: the size, -1 where there is none; its calls that were the library's;
#: address of the first entry whose calls are a kernel's, 0 where the library does it.
ROW_SIZE, ROW_CALLS, ROW_ENTRY, ROW = range(4)

#: Places in an entry (int64): the next one of this size; what its calls look like.
E_NEXT, E_FORM = range(2)
#: Of the first array and of the second one: type and items.
E_GIVEN_TYPE, E_GIVEN_ITEMS, E_TAKEN_TYPE, E_TAKEN_ITEMS = range(2, 6)
#: The op or 0, the root, whether a call may be made in place.
E_OP, E_ROOT, E_IN_PLACE = range(6, 9)
#: The kernel and its arguments but two.
E_KERNEL, E_FRAME, E_STATE, E_BYTES = range(9, 13)
#: Addresses: of what waits for the memory, and of the world's number of calls.
E_QUEUE, E_SEQUENCE = range(13, 15)
#: The calls; the arrays of this one; Python functions that wait for its end, and that
#: leave it to others if an exception has come between.
E_CALLS, E_GIVEN, E_TAKEN, E_FINISH, E_LEAVE = range(15, 20)
#: Bytes of the two arrays, which may not overlap.
E_GIVEN_BYTES, E_TAKEN_BYTES = range(20, 22)
ENTRY: Final = 22
#: Forms of calls: two arrays; one that the root sends; none; two, the second at the root.
PAIR, ONE, NO_ARRAY, AT_ROOT = range(4)
#: Kernels on fewer bytes keep the interpreter's lock: to give it back takes as long.
BRIEF: Final = 16384

#: Where the first item of a tuple lies, the type of an object, and the memory of an array;
#: there lies the length of lists and tuples, and one word further the items of a list.
ITEMS: Final = tuple.__basicsize__
TYPE: Final = object.__basicsize__ - 8
DATA: Final = object.__basicsize__
#: Where an array's dimensions, their lengths, its type and its flags lie, in NumPy's
#: stable ABI; flags of arrays side by side, and of those that may be written.
NDIM_AT, SHAPE_AT, DTYPE_AT, FLAGS_AT = DATA + 8, DATA + 16, DATA + 40, DATA + 48
READABLE, WRITABLE = 0x101, 0x501


def slot_of(nbytes: int) -> int:
    """Give the only slot where a size may stand."""
    return (nbytes ^ nbytes >> 8 ^ nbytes >> 16) % SLOTS


#: So many sizes are known; the first to come is the first to go.
MOST_SIZES: Final = 1024
#: So many kinds of calls of one size may be kernels'.
_MOST_KINDS: Final = 8


@dataclass
class _Size:
    """What is known of one size; ``shm_calls`` by the key of the calls they run."""

    library: bool = False
    shm_calls: dict[CallKey, ShmCall] = field(default_factory=dict)

    @property
    def entry(self) -> int:
        """Address of the first kernel, 0 where the library does it."""
        return next((near.address for near in self.shm_calls.values()), 0)


class KnownSizes:
    """What one communicator knows of one operation.

    All its ranks learn the same in the same order.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._table: NDArray[np.int64] | None = None
        self._open = False
        self._past: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def is_library(self, nbytes: int | None) -> bool:
        """Tell whether calls of a size are the library's.  Local."""
        return nbytes is not None and nbytes in self._sizes and self._sizes[nbytes].library

    def learn(self, nbytes: int) -> None:
        """Note that calls of a size are the library's.  Local."""
        self._size(nbytes).library = True
        self._write(nbytes)

    def learn_near(self, nbytes: int, near: ShmCall) -> None:
        """Note that calls of a size, of the kind of ``near``, are a kernel's.  Local."""
        shm_calls = self._size(nbytes).shm_calls
        if near.key not in shm_calls and len(shm_calls) < _MOST_KINDS:
            for last in list(shm_calls.values())[-1:]:
                last.followed_by(near)
            shm_calls[near.key] = near
        self._write(nbytes)

    def open(self) -> NDArray[np.int64]:
        """Fill the table and return it, to be read from now on.  Local."""
        if self._table is None:
            self._table = empty_table()
        self._open = True
        for nbytes in self._sizes:
            self._write(nbytes)
        return self._table

    def shut(self) -> None:
        """Empty the table: who reads it finds nothing.  Local."""
        self._open = False
        if self._table is not None:
            self._past["native"] += int(self._table[:, 1].sum())
            self._table[:] = empty_table()

    def calls(self) -> Counter[str]:
        """Count the calls that machine code has served, by algorithm.  Local."""
        found = self._past.copy()
        if self._table is not None:
            found["native"] += int(self._table[:, 1].sum())
        found["shared"] += sum(map(_calls, self._sizes.values()))
        return found

    def _size(self, nbytes: int) -> _Size:
        """Give what is known of a size; the oldest one makes way for a new one."""
        if nbytes not in self._sizes:
            if len(self._sizes) == MOST_SIZES:
                self._forget(next(iter(self._sizes)))
            self._sizes[nbytes] = _Size()
        return self._sizes[nbytes]

    def _forget(self, nbytes: int) -> None:
        """Know nothing of a size any more."""
        known = self._sizes.pop(nbytes)
        self._past["shared"] += _calls(known)
        for near in known.shm_calls.values():
            near.followed_by(None)  # it may be learned again, in another order
        if self._open:
            row = self._row(nbytes)
            if row[0] == nbytes:
                self._past["native"] += int(row[1])
                row[:] = -1, 0, 0

    def _write(self, nbytes: int) -> None:
        """Let readers of the table know a size."""
        if not self._open:
            return
        row, entry = self._row(nbytes), self._sizes[nbytes].entry
        if row[0] == nbytes:
            row[2] = entry
            return
        self._past["native"] += int(row[1])  # what stood there goes the long way, and comes back
        row[:] = nbytes, 0, entry

    def _row(self, nbytes: int) -> NDArray[np.int64]:
        """Give the only row where a size may stand."""
        assert self._table is not None
        return row_of(self._table, nbytes)


def _calls(known: _Size) -> int:
    return sum(near.calls for near in known.shm_calls.values())


def row_of(table: NDArray[np.int64], nbytes: int) -> NDArray[np.int64]:
    """Give the only row of a table where a size may stand."""
    row: NDArray[np.int64] = table[slot_of(nbytes)]
    return row


def empty_table() -> NDArray[np.int64]:
    """Make a table of no sizes."""
    return np.full((SLOTS, ROW), (-1, 0, 0), np.int64)


#: Raises what the user is told of an error of the library.
Explain: TypeAlias = Callable[[MPI.Exception], NoReturn]
#: What `record_of` gives.
Record: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], Explain, object]

#: Functions of the interpreter, in the order of the record.
_FUNCTIONS = (
    "PyObject_Vectorcall",
    "PyObject_GetAttr",
    "PyLong_AsSsize_t",
    "Py_IncRef",
    "Py_DecRef",
    "PyErr_Clear",
    "PyErr_ExceptionMatches",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyObject_GetBuffer",
    "PyBuffer_Release",
    "PyErr_Fetch",
    "PyErr_NormalizeException",
    "PyException_SetTraceback",
    "PyErr_Restore",
)
#: What they are told, in the order of the record; the strings as every caller has them.
_OBJECTS = (
    *map(sys.intern, ("nbytes", "itemsize", "root", "op")),
    UNREADABLE,
    None,
    list,
    tuple,
    np.ndarray,
    MPI.IN_PLACE,
    MPI.SUM,
    MPI.Exception,
)


def record_of(
    member: MPI.Intracomm,
    rule: Iterable[int],
    table: NDArray[np.int64],
    explain: Explain,
    words: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> Record:
    """Write down what the code needs to know.  Local.

    Parameters
    ----------
    member : MPI.Intracomm
        The communicator.
    rule : iterable of int
        Of the operation, see `closeranks.collectives.fastpath.shortcut.Rule`.
    table : ndarray of int64
        The sizes that are known.
    explain : callable
        Is given the errors of the library.
    words : tuple of ndarray of int64, shape (1,)
        Where calls that have begun are counted, and those of the library under
        way.

    Returns
    -------
    tuple
        The record, and what it needs to stay alive: all but the first two.
    """
    record = np.zeros(RECORD, np.int64)
    record[:NBYTES] = list(map(address_in_python, _FUNCTIONS))
    record[NBYTES:PLAIN] = list(map(id, _OBJECTS))
    record[PLAIN] = _plain().ctypes.data
    record[MEMBERS], record[PLACE] = member.size, member.rank
    record[SIZED:KNOWN] = list(rule)
    record[KNOWN] = table.ctypes.data
    record[KEPT] = -1
    record[EXPLAIN] = id(explain)
    record[LETTERS] = _letters().ctypes.data
    record[[BEGUN_AT, INSIDE_AT]] = [one.ctypes.data for one in words]
    return record, table, explain, words


@cache
def _plain() -> NDArray[np.int64]:
    """List datatypes whose entries are plain bytes: identity, bytes, NumPy's type."""
    usual = [MPI.DOUBLE, MPI.FLOAT, MPI.INT, MPI.LONG, MPI.BYTE]
    found = {id(one): (one.size, _type_of(one)) for one in usual}
    for one in vars(MPI).values():
        if isinstance(one, MPI.Datatype) and one != MPI.DATATYPE_NULL and one.is_predefined:
            lower, extent = one.Get_extent()
            if lower == 0 and one.size == extent > 0:
                found.setdefault(id(one), (one.size, _type_of(one)))
    return np.array([*((one, *rest) for one, rest in found.items()), (0, 0, 0)], np.int64)


def _type_of(datatype: MPI.Datatype) -> int:
    """Give the identity of NumPy's type of a datatype; 0 for none."""
    dtype = element(datatype, np.dtype(np.uint8), "a shortcut").dtype
    return 0 if dtype is None or dtype is not np.dtype(dtype.char) else id(dtype)


@cache
def _letters() -> NDArray[np.int64]:
    """List NumPy's types by the letter that is the format of a buffer."""
    found = np.zeros(128, np.int64)
    for letter in "bBhHiIlLqQfd?":
        found[ord(letter)] = id(np.dtype(letter))
    return found


@cache
def is_readable() -> bool:
    """Whether tuples, lists and arrays lie in memory as the code reads them.  Local."""
    array = np.zeros(1)
    items = (None, None, array)
    listed = [None, array]
    word = ctypes.c_int64.from_address
    return (
        sys.implementation.name == "cpython"
        and word(id(items) + tuple.__basicsize__ + 16).value == id(array)
        and word(word(id(listed) + object.__basicsize__ + 8).value + 8).value == id(array)
        and word(id(array) + object.__basicsize__).value == array.ctypes.data
        and _knows_arrays(array)
        and word(id(listed) + object.__basicsize__ - 8).value == id(list)
        and word(id(listed) + object.__basicsize__).value == len(listed)
        and word(id(items) + object.__basicsize__).value == len(items)
    )


def _knows_arrays(array: NDArray[np.float64]) -> bool:
    """Whether all that the code reads of an array lies where it looks for it."""
    word, half = ctypes.c_int64.from_address, ctypes.c_int32.from_address
    place = id(array)
    return (
        half(place + NDIM_AT).value == array.ndim
        and word(word(place + SHAPE_AT).value).value == len(array)
        and word(place + DTYPE_AT).value == id(array.dtype)
        and half(place + FLAGS_AT).value == array.flags.num
    )
