"""Products of blocks as one function of the interpreter, as machine code.

It reads where blocks lie through Python's buffers and multiplies them, in a
microsecond beside the product.  Importing this imports Numba; only the
compilation of it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from closeranks.checkpoint.erasure.product_layout import (
    BUFFER,
    BYTES,
    CLEAR,
    COUNT,
    FROM_LONG,
    GET,
    LOT_BYTES,
    LOT_OPERANDS,
    LOT_ROWS,
    LOTS,
    ORDER,
    PAST,
    PLACES,
    READABLE,
    RELEASE,
    RESTORE,
    ROWS,
    SAVE,
    SIZE,
    SOURCES,
    TARGETS,
    TOTAL,
    WIDTH,
    WRITABLE,
    WRITTEN,
)
from closeranks.comms.jit.c_calls import byte_at, call0, call1, call3, call5, set_word, word
from closeranks.comms.jit.python_builtin_layout import DATA


@numba.njit(error_model="numpy")
def _note(record: int, at: int, length: int) -> int:
    """Note where the blocks of a buffer lie; gives how many there are, or -1."""
    view = record + BUFFER
    start, dimensions = word(view), word(view + 32) >> 32
    shape, strides = word(view + 48), word(view + 56)
    if word(view + 24) != 1 or byte_at(word(view + 40)) != BYTES or byte_at(word(view + 40) + 1):
        return -1
    if dimensions == 1:
        rows, nbytes, between, step = 1, word(shape), 0, word(strides)
    elif dimensions == 2:
        rows, nbytes, between, step = word(shape), word(shape + 8), word(strides), word(strides + 8)
    else:
        return -1
    if (at and nbytes != length) or at + rows > word(record + TOTAL) or (step != 1 and nbytes > 1):
        return -1
    places = word(record + PLACES)
    for row in range(rows):
        set_word(places + 8 * (at + row), start + row * between)
    set_word(record + SIZE, nbytes)
    return at + rows


@numba.njit(error_model="numpy")
def _found(record: int, args: int, nargs: int) -> Any:
    """Find all blocks."""
    at = 0
    for index in range(nargs):
        kind = WRITABLE if at >= word(record + WRITTEN) else READABLE
        if call3(word(record + GET), word(args + 8 * index), record + BUFFER, kind):
            call0(word(record + CLEAR))
            return False
        at = _note(record, at, word(record + SIZE))
        call1(word(record + RELEASE), record + BUFFER)
        if at < 0:
            return False
    return at == word(record + TOTAL)


@numba.njit(error_model="numpy")
def _multiply(record: int, whole: int) -> None:
    """Do all lots of rows."""
    lots, targets = word(record + LOTS), word(record + TARGETS)
    while word(lots):
        call5(word(lots), word(record + COUNT), word(record + SOURCES), targets,
              word(lots + LOT_OPERANDS), whole)  # fmt: skip
        targets += 8 * word(lots + LOT_ROWS)
        lots += LOT_BYTES


def multiply(itself: int, args: int, nargs: int) -> Any:
    """Multiply blocks, without the interpreter's lock.

    A C function of the kind METH_FASTCALL; ``itself`` is the record, an array.
    Takes tables and blocks, in their order.  Gives 0 if they are none such, and
    nothing is done then; 1; or 2 if the last bytes fill no vector, and are left.
    """
    record = word(itself + DATA)
    if not _found(record, args, nargs):
        return call1(word(record + FROM_LONG), 0)
    nbytes, order = word(record + SIZE), word(record + ORDER)
    count, places, sources = word(record + COUNT), word(record + PLACES), word(record + SOURCES)
    rows = word(record + ROWS)
    if (count + rows) * nbytes >= word(record + PAST):
        return call1(word(record + FROM_LONG), 0)
    for index in range(count + rows):  # those that are read, then those that are written
        set_word(sources + 8 * index, word(places + 8 * word(order + 8 * index)))
    whole = nbytes - nbytes % word(record + WIDTH)
    if whole:
        thread = call0(word(record + SAVE))
        _multiply(record, whole)
        call1(word(record + RESTORE), thread)
    return call1(word(record + FROM_LONG), 1 if whole == nbytes else 2)


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give the function, and its signature."""
    return {"multiply": multiply}[name], types.int64(*(types.int64,) * 3)
