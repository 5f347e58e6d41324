"""Machine code of the functions that `python_builtin` makes.

This module imports Numba, so it is imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from closeranks.comms.jit.c_calls import call0, call1, call5, word
from closeranks.comms.jit.python_builtin_layout import (
    AS_SSIZE,
    COUNT,
    DATA,
    FROM_LONG,
    FUNCTION,
    MASK,
    OCCURRED,
    PLAN,
    RESTORE,
    SAVE,
    WRONG,
)


@numba.njit(error_model="numpy")
def _number(record: int, args: int, index: int) -> int:
    """Read an argument; 0 if it is missing."""
    if index >= word(record + COUNT):
        return 0
    return call1(word(record + AS_SSIZE), word(args + 8 * index))


def call(itself: int, args: int, nargs: int) -> int:
    """Call a C function of up to five int64 without the interpreter's lock.

    A C function of the kind METH_FASTCALL; ``itself`` is the record, an array.
    """
    record = word(itself + DATA)
    if nargs != word(record + COUNT):
        return call0(word(record + WRONG)) * 0
    a, b, c = _number(record, args, 0), _number(record, args, 1), _number(record, args, 2)
    d, e = _number(record, args, 3), _number(record, args, 4)
    if (a == -1 or b == -1 or c == -1 or d == -1 or e == -1) and call0(word(record + OCCURRED)):
        return 0
    thread = call0(word(record + SAVE))
    result = call5(word(record + FUNCTION), a, b, c, d, e)
    call1(word(record + RESTORE), thread)
    return call1(word(record + FROM_LONG), result & word(record + MASK))


def copy(itself: int, args: int, nargs: int) -> int:
    """Copy from an array to another by a loop, without the interpreter's lock.

    A C function of the kind METH_FASTCALL: target, source, and bytes from the
    first element of either where there are any.
    """
    record = word(itself + DATA)
    t, s = 0, 0
    if nargs == 4:
        t, s = (
            call1(word(record + AS_SSIZE), word(args + 16)),
            call1(word(record + AS_SSIZE), word(args + 24)),
        )
        if (t == -1 or s == -1) and call0(word(record + OCCURRED)):
            return 0
    elif nargs != 2:
        return call0(word(record + WRONG)) * 0
    thread = call0(word(record + SAVE))
    call5(word(record + FUNCTION), record + PLAN, word(args), t, word(args + 8), s)
    call1(word(record + RESTORE), thread)
    return call1(word(record + FROM_LONG), 0)


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give the function that a builtin's description names, and its signature."""
    return {"call": call, "copy": copy}[name], types.int64(*(types.int64,) * 3)
