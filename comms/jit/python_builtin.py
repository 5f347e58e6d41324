"""Builtin functions made of machine code: the cheapest calls from Python.

A call takes a fifth of the time of `ctypes`, and a third of the time of a
Numba function.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.jit import code_cache

#: METH_FASTCALL, and METH_KEYWORDS.
FAST: Final = 0x80
KEYWORDS: Final = 0x02
#: Functions of the interpreter, in the order of the offsets in `python_builtin_layout`.
_FUNCTIONS: Final = (
    "PyLong_AsSsize_t",
    "PyErr_Occurred",
    "PyErr_BadArgument",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
#: Kinds of results: the bits that count, and the function that makes an object of them.
_RESULTS: Final = {
    "bool": (0xFF, "PyBool_FromLong"),
    "int": (-1, "PyLong_FromSsize_t"),
    "nothing": (0, "PyBool_FromLong"),
}


class _Method(ctypes.Structure):
    """``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def function_at(
    address: int, arguments: int, result: Literal["bool", "int", "nothing"] = "bool"
) -> Callable[..., Any]:
    """Let Python call a C function of int64 numbers; other threads run meanwhile.

    Local.

    Parameters
    ----------
    address : int
        Where it is.
    arguments : int
        How many numbers it takes, 5 at most.
    result : {"bool", "int", "nothing"}
        What it returns.

    Returns
    -------
    callable
        Takes that many ints, else raises TypeError.
    """
    if sys.implementation.name != "cpython":
        kinds = {"bool": ctypes.c_bool, "int": ctypes.c_int64, "nothing": None}
        return ctypes.CFUNCTYPE(kinds[result], *[ctypes.c_int64] * arguments)(address)
    mask, make = _RESULTS[result]
    known = [address, arguments, mask, address_in_python(make)]
    record = np.array([*known, *map(address_in_python, _FUNCTIONS)], np.int64)
    code = code_cache.address_of("closeranks.comms.jit.python_builtin_code", "call")
    return builtin("call", "Call a C function.", code, FAST, record)


def copier_at(address: int, plan: NDArray[np.int64]) -> Callable[..., object]:
    """Let Python call a loop of `copy_loops`; other threads run.

    Local; CPython only.

    Parameters
    ----------
    address : int
        Where the loop is.
    plan : ndarray of int64
        Read by the loop; copied.

    Returns
    -------
    callable
        Takes the target's array and the source's, unchecked, and optionally bytes
        from the first element of each.
    """
    _, make = _RESULTS["nothing"]
    known = [address, 0, 0, address_in_python(make), *map(address_in_python, _FUNCTIONS)]
    code = code_cache.address_of("closeranks.comms.jit.python_builtin_code", "copy")
    record = np.concatenate([np.array(known, np.int64), plan])
    return builtin("copy", "Copy from array to array.", code, FAST, record)


def builtin(name: str, doc: str, code: int, flags: int, itself: object) -> Callable[..., Any]:
    """Make a builtin function.

    Local.

    Parameters
    ----------
    name, doc : str
        Its ``__name__`` and ``__doc__``.
    code : int
        Address of its machine code.
    flags : int
        How that is called, `FAST` with or without `KEYWORDS`.
    itself : object
        Its first argument; kept alive.
    """
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    described = ctypes.addressof(_described(name, doc, code, flags))
    made: Callable[..., Any] = new(described, itself, None)
    return made


@cache
def address_in_python(name: str) -> int:
    """Give the address of a function of the interpreter's C interface.  Local."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


@cache
def _described(name: str, doc: str, code: int, flags: int) -> _Method:
    """Describe a function to the interpreter, which keeps the description."""
    return _Method(name.encode(), code, flags, doc.encode())
