"""How the machine code of shortcuts reads the arguments of a call.

It talks to the interpreter through the functions of its C interface, whose
addresses stand in the record.  Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from closeranks.collectives.fastpath.shortcut_layout import (
    ARRAY,
    AS_SSIZE,
    BUFFERS,
    CLEAR,
    DATA,
    DECREF,
    DTYPE_AT,
    FLAGS_AT,
    GETATTR,
    IN_PLACE,
    ITEMS,
    ITEMSIZE,
    ITEMSIZE_AT,
    LETTERS,
    LIST,
    MEMBERS,
    NBYTES,
    NDIM_AT,
    NONE,
    OP_NAME,
    PLACE,
    PLAIN,
    PLAIN_ROW,
    SEEN,
    SEEN_BUF,
    SEEN_FORMAT,
    SEEN_LEN,
    SHAPE_AT,
    SHOWN,
    SUM,
    TUPLE,
    TYPE,
    UNVIEW,
    VIEW,
    WHOLE_FLAGS,
)
from closeranks.comms.jit.c_calls import call1, call2, call3, set_word, word

_compiled: Callable[..., Any] = numba.njit(error_model="numpy")


@_compiled
def place(record: int, column: int) -> int:
    """Read a column of a record."""
    return word(record + 8 * column)


@_compiled
def byte(address: int) -> int:
    """Read a byte; no word is read that lies on two pages."""
    return word(address & ~7) >> 8 * (address & 7) & 0xFF


@_compiled
def number(record: int, thing: int) -> int:
    """Read an integer object; -1 if it is none, or negative."""
    value = call1(place(record, AS_SSIZE), thing)
    if value < 0:
        call1(place(record, CLEAR), 0)
        return -1
    return value


@_compiled
def attribute(record: int, thing: int, name: int) -> int:
    """Read an attribute of an object that is an integer; -1 if there is none."""
    found = call2(place(record, GETATTR), thing, place(record, name))
    if found == 0:
        call1(place(record, CLEAR), 0)
        return -1
    value = number(record, found)
    call1(place(record, DECREF), found)
    return value


@_compiled
def bytes_of(record: int, thing: int) -> int:
    """Give the bytes of an array or another object that tells them, else -1."""
    if word(thing + TYPE) != place(record, ARRAY):
        return attribute(record, thing, NBYTES)
    found, shape = word(word(thing + DTYPE_AT) + ITEMSIZE_AT), word(thing + SHAPE_AT)
    for axis in range(word(thing + NDIM_AT) & 0xFFFFFFFF):
        found *= word(shape + 8 * axis)
    return found


@_compiled
def items_of(record: int, spec: int) -> tuple[int, int]:
    """Give where the items of a list or a tuple stand, and how many; else 0."""
    kind = word(spec + TYPE)
    if kind == place(record, LIST):
        return word(spec + DATA + 8), word(spec + DATA)
    if kind == place(record, TUPLE):
        return spec + ITEMS, word(spec + DATA)
    return 0, 0


@_compiled
def plain_row(record: int, datatype: int) -> int:
    """Give the place of a plain datatype in its table; 0 of anything else."""
    at = place(record, PLAIN)
    while word(at) != 0:
        if word(at) == datatype:
            return at
        at += 8 * PLAIN_ROW
    return 0


@_compiled
def unit_of(record: int, datatype: int) -> int:
    """Give the bytes of a plain datatype; 0 of anything else."""
    at = plain_row(record, datatype)
    return word(at + 8) if at != 0 else 0


@_compiled
def type_of(record: int, spec: int) -> int:
    """Give NumPy's type of what a message is counted in; 0 where it cannot be told."""
    items, parts = items_of(record, spec)
    buffer = spec
    if parts > 0:
        at = plain_row(record, word(items + 8 * (parts - 1)))
        if at != 0:
            return word(at + 16)
        buffer = word(items)
    if word(buffer + TYPE) == place(record, ARRAY):
        return word(buffer + DTYPE_AT)
    if buffer == place(record, NONE) or not is_viewed(record, buffer):
        return 0
    return place(record, SEEN_FORMAT)


@_compiled
def is_of_one_type(record: int, args: int) -> bool:
    """Tell whether the two messages of a call are counted in one type."""
    given = type_of(record, word(args))
    return given != 0 and given == type_of(record, word(args + 8))


@_compiled
def length(record: int, spec: int, blocks: int) -> int:
    """Give the bytes of a message; -1 if they cannot be told.

    ``array``, ``[array, type]`` or ``[array, count, type]``, which counts one of
    its blocks.
    """
    items, parts = items_of(record, spec)
    if items == 0:
        return bytes_of(record, spec)
    if parts < 2 or parts > 3:
        return -1
    room = bytes_of(record, word(items))
    unit = unit_of(record, word(items + 8 * (parts - 1)))
    if unit == 0 or room < 0 or room % unit != 0:
        return -1
    if parts == 2:
        return room
    count = number(record, word(items + 8))
    return count * blocks * unit if 0 <= count <= room // (unit * blocks) else -1


@_compiled
def vector(record: int, spec: int) -> tuple[int, int]:
    """Give the bytes of this rank's block and of all blocks; -1 if they do not fit.

    ``[array, counts]`` or ``[array, counts, type]``, counts in a list: a tuple
    holds counts and displacements.
    """
    items, parts = items_of(record, spec)
    if parts < 2 or parts > 3:
        return -1, -1
    buffer, counts = word(items), word(items + 8)
    numbers, known = items_of(record, counts)
    if word(counts + TYPE) != place(record, LIST) or known != place(record, MEMBERS):
        return -1, -1
    room = bytes_of(record, buffer)
    unit = attribute(record, buffer, ITEMSIZE)
    if parts == 3:
        unit = unit_of(record, word(items + 16))
    total = own = 0
    for rank in range(known):
        count = number(record, word(numbers + 8 * rank))
        if count < 0 or count > room:
            return -1, -1
        total += count
        if rank == place(record, PLACE):
            own = count
    if unit <= 0 or total * unit > room:
        return -1, -1
    return own * unit, total * unit


@_compiled
def is_viewed(record: int, buffer: int) -> bool:
    """Tell whether an object shows its memory to the processor; notes what it is.

    It is asked: CuPy's arrays know how and refuse; mpi4py would take their
    address.
    """
    seen = record + 8 * SEEN
    if call3(place(record, VIEW), buffer, seen, SHOWN) != 0:
        call1(place(record, CLEAR), 0)
        return False
    letters, found = place(record, SEEN_FORMAT), 0
    if letters != 0 and byte(letters) < 128 and byte(letters + 1) == 0:
        found = word(place(record, LETTERS) + 8 * byte(letters))
    call1(place(record, UNVIEW), seen)
    set_word(record + 8 * SEEN_FORMAT, found)
    return True


@_compiled
def bounds(record: int, spec: int) -> tuple[int, int]:
    """Give where the memory of a message begins and ends; -1 where it cannot be told."""
    items, parts = items_of(record, spec)
    buffer = word(items) if parts > 0 else spec
    if buffer == place(record, IN_PLACE) or buffer == place(record, NONE):
        return 0, 0
    if word(buffer + TYPE) == place(record, ARRAY):
        if word(buffer + FLAGS_AT) & WHOLE_FLAGS == 0:
            return -1, -1  # it has gaps, which mpi4py would refuse
        low = word(buffer + DATA)
        return low, low + bytes_of(record, buffer)
    if not is_viewed(record, buffer):
        return -1, -1
    low = place(record, SEEN_BUF)
    return low, low + place(record, SEEN_LEN)


@_compiled
def apart_on_host(record: int, args: int, nargs: int) -> bool:
    """Tell whether all messages lie in host memory, each in memory of its own."""
    begin = end = 0
    for at in range(min(nargs, place(record, BUFFERS))):
        low, high = bounds(record, word(args + 8 * at))
        if low < 0 or (low < end and begin < high):
            return False
        begin, end = low, high
    return True


@_compiled
def op_of(record: int, args: int, nargs: int, names: int) -> int:
    """Give the op of a call: its third argument, or the keyword, or the sum."""
    if nargs > 2:
        return word(args + 16)
    if names != 0:
        for index in range(word(names + DATA)):
            if word(names + ITEMS + 8 * index) == place(record, OP_NAME):
                return word(args + 8 * (nargs + index))
    return place(record, SUM)


@_compiled
def add(at: int, step: int) -> None:
    """Count at an address."""
    set_word(at, word(at) + step)
