"""The machine code of shortcuts that begin an operation and give a request.

`closeranks.collectives.fastpath.shortcut_code` calls it.  Importing this
module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from closeranks.collectives.fastpath.shortcut_layout import (
    APPEND,
    ARRAY,
    BEGUN,
    BEGUN_AT,
    CALL_NONE,
    CALL_ONE,
    COMM,
    DATA,
    DECREF,
    DIRECT,
    DROPPED,
    DTYPE_AT,
    FLAGS_AT,
    INCREF,
    INSIDE_AT,
    ITEMS,
    ITEMSIZE_AT,
    KEEPS_NAME,
    MANY_BEGUN,
    MOST_COUNT,
    NEW_REFERENCE,
    NEW_TUPLE,
    NOT_BEGUN,
    OP_HANDLE,
    OP_NAME,
    OP_TYPE,
    ORIGIN,
    ORIGIN_NAME,
    READABLE,
    REFUSED,
    REQUEST,
    REQUEST_HANDLE,
    RESTORE,
    SAVE,
    SET_ATTRIBUTE,
    TYPE,
    TYPE_ROW,
    TYPES,
    WRITABLE,
)
from closeranks.collectives.fastpath.shortcut_reading_code import (
    add,
    bytes_of,
    op_of,
    place,
)
from closeranks.comms.jit.c_calls import call0, call1, call2, call3, call7, set_word, word

_compiled: Callable[..., Any] = numba.njit(error_model="numpy")


@_compiled
def is_full(record: int) -> bool:
    """Tell whether requests have to be cleared first, which the long way does."""
    if place(record, REQUEST) == 0:
        return False
    begun = word(place(record, BEGUN) + DATA)
    return begun >= MANY_BEGUN or word(place(record, DROPPED) + DATA) != 0


@_compiled
def tuple_of(record: int, args: int, nargs: int) -> int:
    """Make a tuple of the arguments of a call; gives 0 and an error without memory."""
    made = call1(place(record, NEW_TUPLE), nargs)
    if made != 0:
        for at in range(nargs):
            call1(place(record, INCREF), word(args + 8 * at))
            set_word(made + ITEMS + 8 * at, word(args + 8 * at))
    return made


@_compiled
def note(record: int, made: int, keeps: int) -> None:
    """Tell a request what it keeps and whence it comes, and the communicator of it."""
    set_attribute = place(record, SET_ATTRIBUTE)
    call3(set_attribute, made, place(record, KEEPS_NAME), keeps)
    call1(place(record, DECREF), keeps)
    call3(set_attribute, made, place(record, ORIGIN_NAME), place(record, ORIGIN))
    reference = call2(place(record, NEW_REFERENCE), made, 0)
    call2(place(record, APPEND), place(record, BEGUN), reference)
    call1(place(record, DECREF), reference)


@_compiled
def taken(record: int, begun: int, args: int, nargs: int) -> int:
    """Make of the library's request what the user gets.

    Gives 0 and an error without memory.  No line of Python runs, so no handler of
    a signal comes between.
    """
    if place(record, REQUEST) == 0:
        return begun
    keeps = tuple_of(record, args, nargs)
    made = call2(place(record, CALL_ONE), place(record, REQUEST), begun) if keeps != 0 else 0
    if made != 0:
        note(record, made, keeps)
    call1(place(record, DECREF), begun)
    return made


@_compiled
def type_handle(record: int, dtype: int) -> int:
    """Give where the MPI datatype of a NumPy type stands, 0 if it is not listed."""
    at = place(record, TYPES)
    while word(at) != 0:
        if word(at) == dtype:
            return at + 8
        at += 8 * TYPE_ROW
    return 0


@_compiled
def same_bytes(record: int, given: int, taken: int) -> int:
    """Give the bytes of two arrays of one type and size that share no memory, else 0."""
    if word(given + TYPE) != place(record, ARRAY) or word(taken + TYPE) != place(record, ARRAY):
        return 0
    if word(given + DTYPE_AT) != word(taken + DTYPE_AT):
        return 0
    if word(given + FLAGS_AT) & READABLE != READABLE:
        return 0
    if word(taken + FLAGS_AT) & WRITABLE != WRITABLE:
        return 0
    nbytes = bytes_of(record, given)
    if nbytes != bytes_of(record, taken):
        return 0
    low, high = word(given + DATA), word(taken + DATA)
    is_apart = low + nbytes <= high or high + nbytes <= low
    return nbytes if is_apart else 0


@_compiled
def begun_directly(record: int, args: int, nargs: int, names: int) -> int:
    """Begin a reduction of two arrays to all ranks, past mpi4py.

    Gives the user's request, or 0 and an error.  `NOT_BEGUN` if mpi4py has to see
    the arguments; `REFUSED` by the library, which the long way explains.
    """
    if nargs > 3 or (names != 0 and (word(names + DATA) > 1 or nargs > 2)):
        return NOT_BEGUN
    if names != 0 and word(names + ITEMS) != place(record, OP_NAME):
        return NOT_BEGUN
    op = op_of(record, args, nargs, names)
    nbytes = same_bytes(record, word(args), word(args + 8))
    if nbytes == 0 or word(op + TYPE) != place(record, OP_TYPE):
        return NOT_BEGUN
    dtype = word(word(args) + DTYPE_AT)
    datatype, count = type_handle(record, dtype), nbytes // word(dtype + ITEMSIZE_AT)
    if datatype == 0 or count > MOST_COUNT:
        return NOT_BEGUN
    keeps = tuple_of(record, args, nargs)
    made = call1(place(record, CALL_NONE), place(record, REQUEST)) if keeps != 0 else 0
    if made == 0:
        return 0
    add(place(record, BEGUN_AT), 1)
    add(place(record, INSIDE_AT), 1)
    thread = call0(place(record, SAVE))
    failed = call7(
        place(record, DIRECT),
        word(word(args) + DATA),
        word(word(args + 8) + DATA),
        count,
        word(datatype),
        word(op + place(record, OP_HANDLE)),
        place(record, COMM),
        made + place(record, REQUEST_HANDLE),
    )
    call1(place(record, RESTORE), thread)
    add(place(record, INSIDE_AT), -1)
    if failed != 0:
        add(place(record, BEGUN_AT), -1)
        call1(place(record, DECREF), keeps)
        call1(place(record, DECREF), made)
        return REFUSED
    note(record, made, keeps)
    return made
