"""What the machine code of shortcuts is told about the interpreter and about MPI."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import NoReturn, TypeAlias

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.arguments.native_handover import UNREADABLE
from closeranks.collectives.fastpath import shortcut_layout as code
from closeranks.comms.buffers.datatype import element
from closeranks.comms.jit.python_builtin import address_in_python

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
    record = np.zeros(code.RECORD, np.int64)
    record[: code.NBYTES] = list(map(address_in_python, _FUNCTIONS))
    record[code.NBYTES : code.PLAIN] = list(map(id, _OBJECTS))
    record[code.PLAIN] = _plain().ctypes.data
    record[code.MEMBERS], record[code.PLACE] = member.size, member.rank
    record[code.SIZED : code.KNOWN] = list(rule)
    record[code.KNOWN] = table.ctypes.data
    record[code.KEPT] = -1
    record[code.EXPLAIN] = id(explain)
    record[code.LETTERS] = _letters().ctypes.data
    record[[code.BEGUN_AT, code.INSIDE_AT]] = [one.ctypes.data for one in words]
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
        half(place + code.NDIM_AT).value == array.ndim
        and word(word(place + code.SHAPE_AT).value).value == len(array)
        and word(place + code.DTYPE_AT).value == id(array.dtype)
        and half(place + code.FLAGS_AT).value == array.flags.num
    )
