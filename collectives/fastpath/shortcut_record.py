"""The record of the machine code of shortcuts: interpreter, MPI, known sizes.

What is known is known of size classes, see
`closeranks.collectives.arguments.call_key.size_class`: choices are made for
classes, so a call of a new size in a known class is a known call.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.arguments.call_key import CLASSES
from closeranks.collectives.arguments.native_handover import UNREADABLE
from closeranks.collectives.engine.execution_arrays import handle
from closeranks.collectives.engine.loop_mpi_functions import address
from closeranks.collectives.fastpath.shortcut_layout import (
    BEGUN,
    BEGUN_AT,
    CALL_NONE,
    CALL_ONE,
    COMM,
    DIRECT,
    DROPPED,
    DTYPE_AT,
    EXPLAIN,
    FLAGS_AT,
    INSIDE_AT,
    ITEMSIZE_AT,
    KEPT,
    KNOWN,
    LETTERS,
    MEMBERS,
    NBYTES,
    NDIM_AT,
    OP_HANDLE,
    OP_TYPE,
    ORIGIN,
    PLACE,
    PLAIN,
    RECORD,
    REQUEST,
    REQUEST_HANDLE,
    ROW,
    ROW_CALLS,
    ROW_ENTRY,
    ROW_KNOWN,
    ROW_LEFT,
    SHAPE_AT,
    SIZED,
    TYPES,
)
from closeranks.collectives.selection.call_options import NATIVE, SHARED
from closeranks.comms.buffers.datatype import element
from closeranks.comms.jit.python_builtin import address_in_python

if TYPE_CHECKING:
    from closeranks.collectives.fastpath.shm_call import ShmCall, ShmKind


#: So many kinds of calls of one size class may be kernels'.
MOST_KINDS: Final = 32


@dataclass
class ClassUse:
    """What is known of one size class; ``shm_calls`` by kind of call."""

    library: bool = False
    counted: bool = True
    shm_calls: dict[ShmKind, ShmCall] = field(default_factory=dict)

    @property
    def entry(self) -> int:
        """Address of the first kernel, 0 where the library does it."""
        return next((near.address for near in self.shm_calls.values()), 0)


#: Calls of a class that nobody looks at again.
UNCOUNTED: Final = np.full(CLASSES, 1 << 62, np.int64)


class KnownSizes:
    """What one communicator knows of one operation, by size class.

    All its ranks learn the same in the same order.

    Parameters
    ----------
    left : ndarray of int64, shape (CLASSES,)
        Calls that a class is known for, see
        `closeranks.collectives.selection.chooser.Chooser.calls_left`.

    Attributes
    ----------
    classes : dict of int to ClassUse
        What is known, by size class; read only.
    library : set of int
        Size classes that are the library's, and counted; read only.
    """

    def __init__(self, left: NDArray[np.int64] = UNCOUNTED) -> None:
        self._left = left
        self.classes: dict[int, ClassUse] = {}
        self.library: set[int] = set()
        self._table: NDArray[np.int64] | None = None
        self._open = False
        self._past = 0
        self._gone: dict[int, ShmCall] = {}

    def __bool__(self) -> bool:
        return bool(self.classes)

    def is_library(self, size_class: int) -> bool:
        """Tell whether calls of a class are the library's.  Local."""
        known = self.classes.get(size_class)
        return known is not None and known.library

    def goes_to(self, size_class: int, algorithm: str) -> bool:
        """Tell whether nothing else is known of a class than an algorithm.  Local."""
        known = self.classes.get(size_class)
        return known is None or algorithm == (NATIVE if known.library else SHARED)

    def runs(self, size_class: int, kind: ShmKind) -> bool:
        """Tell whether a kernel serves calls of a kind, or can no more be added.  Local."""
        known = self.classes.get(size_class)
        if known is None:
            return False
        return kind in known.shm_calls or len(known.shm_calls) == MOST_KINDS

    def forget(self, size_class: int) -> None:
        """Know a class no more: its calls may go elsewhere from now on.  Local."""
        gone = self.classes.pop(size_class, None)
        self.library.discard(size_class)
        if gone is not None:
            self._gone |= {id(near): near for near in gone.shm_calls.values()}
        if self._table is not None:
            self._table[size_class, ROW_KNOWN] = 0

    def learn(self, size_class: int, *, counted: bool = True) -> None:
        """Note that calls of a class are the library's, and whether for a time.  Local."""
        known = self.classes.setdefault(size_class, ClassUse())
        known.library, known.counted = True, counted
        if counted:
            self.library.add(size_class)
        self._write(size_class)

    def learn_near(self, size_class: int, near: ShmCall, *, counted: bool = True) -> None:
        """Note that calls of a class, of the kind of ``near``, are a kernel's.  Local."""
        known = self.classes.setdefault(size_class, ClassUse())
        shm_calls, known.counted = known.shm_calls, counted
        self.library.discard(size_class)
        if near.kind not in shm_calls and len(shm_calls) < MOST_KINDS:
            near.followed_by(None)
            for last in list(shm_calls.values())[-1:]:
                last.followed_by(near)
            shm_calls[near.kind] = near
        self._write(size_class)

    def open(self) -> NDArray[np.int64]:
        """Fill the table and return it, to be read from now on.  Local."""
        if self._table is None:
            self._table = empty_table()
        self._open = True
        for size_class in self.classes:
            self._write(size_class)
        return self._table

    def shut(self) -> None:
        """Empty the table: who reads it finds nothing.  Local."""
        self._open = False
        if self._table is not None:
            self._past += int(self._table[:, ROW_CALLS].sum())
            self._table[:] = 0

    def calls(self) -> Counter[str]:
        """Count the calls that machine code has served, by algorithm.  Local."""
        native = self._past
        if self._table is not None:
            native += int(self._table[:, ROW_CALLS].sum())
        shm_calls = dict(self._gone)
        for known in self.classes.values():
            shm_calls |= {id(near): near for near in known.shm_calls.values()}
        return Counter(native=native, shared=sum(near.calls for near in shm_calls.values()))

    def _write(self, size_class: int) -> None:
        """Let readers of the table know a class."""
        if self._open:
            assert self._table is not None
            row = self._table[size_class]
            known = self.classes[size_class]
            left = self._left if known.counted else UNCOUNTED
            row[ROW_ENTRY], row[ROW_LEFT] = known.entry, left[size_class:].ctypes.data
            row[ROW_KNOWN] = 1  # last, for a reader in another thread


def empty_table() -> NDArray[np.int64]:
    """Make a table of no classes."""
    return np.zeros((CLASSES, ROW), np.int64)


#: Raises what the user is told of an error of the library.
Explain: TypeAlias = Callable[[MPI.Exception], NoReturn]


#: Operations whose calls with a request may go past mpi4py.
_DIRECT: Final = {"iallreduce": "MPI_Iallreduce"}


class Begun(NamedTuple):
    """What calls that return a request make of the library's.

    Attributes
    ----------
    request : type
        Takes the library's request; has the attributes ``_keeps`` for what it was
        begun with and ``_origin``.
    origin : object
        What its requests have in common.
    begun : list of ref
        Where requests are noted; cleared by calls that go the long way.
    dropped : list
        Is empty unless there are dropped requests, which such calls clear, too.
    operation : str
        Name of the method in lower case.
    """

    request: type[MPI.Request]
    origin: object
    begun: list[weakref.ref[Any]]
    dropped: list[Any]
    operation: str


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


#: The same for requests.
_REQUEST_FUNCTIONS = (
    "PyObject_CallOneArg",
    "PyObject_SetAttr",
    "PyWeakref_NewRef",
    "PyList_Append",
    "PyTuple_New",
)
_REQUEST_NAMES = tuple(map(sys.intern, ("_keeps", "_origin")))


def record_of(
    member: MPI.Intracomm,
    rule: Iterable[int],
    table: NDArray[np.int64],
    explain: Explain,
    words: tuple[NDArray[np.int64], NDArray[np.int64]],
    begun: Begun | None = None,
) -> Record:
    """Write down what the code needs to know.  Local.

    Parameters
    ----------
    member : MPI.Intracomm
        The communicator.
    rule : iterable of int
        Of the operation, see `closeranks.collectives.fastpath.shortcut.Rule`.
    table : ndarray of int64
        The size classes that are known.
    explain : callable
        Is given the errors of the library.
    words : tuple of ndarray of int64, shape (1,)
        Where calls that have begun are counted, and those of the library under
        way.
    begun : Begun, optional
        Of calls that return a request.

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
    if begun is not None:
        record[[REQUEST, ORIGIN, BEGUN, DROPPED]] = list(map(id, begun[:-1]))
        functions = map(address_in_python, _REQUEST_FUNCTIONS)
        record[CALL_ONE:DIRECT] = [*functions, *map(id, _REQUEST_NAMES)]
        _write_direct(record, member, begun)
    return record, table, explain, (words, begun)


def _write_direct(record: NDArray[np.int64], member: MPI.Intracomm, begun: Begun) -> None:
    """Write down how calls go past mpi4py, where they may."""
    function = _DIRECT.get(begun.operation)
    if function is None:
        return
    record[DIRECT] = address(getattr(ctypes.CDLL(MPI.__file__), function))
    record[CALL_NONE], record[OP_TYPE] = address_in_python("PyObject_CallNoArgs"), id(MPI.Op)
    record[COMM] = handle(member)
    places = ((REQUEST_HANDLE, MPI.Request()), (OP_HANDLE, MPI.SUM))
    for column, thing in places:
        record[column] = MPI._addressof(thing) - id(thing)
    record[TYPES] = _types().ctypes.data


@cache
def _types() -> NDArray[np.int64]:
    """List NumPy's types with the MPI datatype that mpi4py takes for their arrays."""
    rows = [(id(np.dtype(code)), handle(MPI.Datatype.fromcode(code))) for code in "dflqibBhHILQ"]
    return np.array([*rows, (0, 0)], np.int64)


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
        and all(
            word(id(one) + ITEMSIZE_AT).value == one.itemsize
            for one in map(np.dtype, ("u1", "f8", "c16", "S7", "f4,f8"))
        )
    )
