"""The compiled refill: the numbers of a bound plan for another count.

`refill` computes the numbers of a
`closeranks.collectives.plans.count_record.SizedTable` and writes them into the
table.  Then it lays out the scratch, and writes the rows of the compiled loop,
as `closeranks.collectives.engine.execution_arrays` does.  It says so if a step
needs Python.

Importing this module imports Numba; only `closeranks.comms.jit.code_cache`
does, to compile it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numba.core import types
from numpy.typing import NDArray

from closeranks.collectives.engine import loop_layout as loop
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.block import INPUT, OUTPUT
from closeranks.collectives.plans.count_operations import Operation, Relation
from closeranks.collectives.plans.table_columns import Kind
from closeranks.collectives.refill import refill_layout as at
from closeranks.comms.jit.atomics import array_at, table_at

_ADD: Final = int(Operation.ADD)
_SUBTRACT: Final = int(Operation.SUBTRACT)
_PLUS: Final = int(Operation.PLUS)
_TIMES: Final = int(Operation.TIMES)
_OVER: Final = int(Operation.OVER)
_MODULO: Final = int(Operation.MODULO)
_EQUAL: Final = int(Relation.EQUAL)
_UNEQUAL: Final = int(Relation.UNEQUAL)
_LESS: Final = int(Relation.LESS)
_AT_LEAST: Final = int(Relation.AT_LEAST)
_AT_MOST: Final = int(Relation.AT_MOST)
_SEND: Final = int(Kind.SEND)
_RECEIVE: Final = int(Kind.RECEIVE)
_REDUCE: Final = int(Kind.REDUCE)

Numbers = NDArray[np.int64]
#: Address, bytes, runs, bytes of a run, bytes between runs, bytes of an item; whole or strided.
_Side = tuple[int, int, int, int, int, int, bool]
_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    made: Any = numba.njit(error_model="numpy")(function)
    return cast("_F", made)


@_compiled
def evaluate(entries: Numbers, values: Numbers, count: int) -> None:
    """Compute the numbers of a count."""
    for place in range(len(entries)):
        operation, a, b = entries[place, 0], entries[place, 1], entries[place, 2]
        if operation == _ADD:
            values[place] = values[a] + values[b]
        elif operation == _SUBTRACT:
            values[place] = values[a] - values[b]
        elif operation == _PLUS:
            values[place] = values[a] + b
        elif operation == _TIMES:
            values[place] = values[a] * b
        elif operation == _OVER:
            values[place] = values[a] // b
        elif operation == _MODULO:
            values[place] = values[a] % b
        else:
            values[place] = count


@_compiled
def holds(conditions: Numbers, values: Numbers) -> bool:
    """Tell whether the steps are those of the table."""
    for place in range(len(conditions)):
        gap, relation = values[conditions[place, 0]], conditions[place, 1]
        if relation == _EQUAL:
            fine = gap == 0
        elif relation == _UNEQUAL:
            fine = gap != 0
        elif relation == _LESS:
            fine = gap < 0
        elif relation == _AT_LEAST:
            fine = gap >= 0
        elif relation == _AT_MOST:
            fine = gap <= 0
        else:
            fine = gap > 0
        if not fine:
            return False
    return True


@_compiled
def room_for(frame: Numbers, nbytes: int) -> int:
    """Give the address of room in the scratch; counts it even if there is none."""
    first = frame[at.NEEDED_BYTES]
    frame[at.NEEDED_BYTES] = first + (nbytes + at.LINE - 1) // at.LINE * at.LINE
    return frame[at.SCRATCH] + first


@_compiled
def lay_out(frame: Numbers, buffers: Numbers, places: Numbers) -> bool:
    """Place all buffers; False if the caller's memory is too small."""
    size = frame[at.ITEMSIZE]
    places[INPUT], places[OUTPUT] = frame[at.INPUT], frame[at.OUTPUT]
    if buffers[INPUT, 0] * size > frame[at.INPUT_BYTES]:
        return False
    if buffers[OUTPUT, 0] * size > frame[at.OUTPUT_BYTES]:
        return False
    for buffer in range(OUTPUT + 1, len(buffers)):
        unit = buffers[buffer, 1] if buffers[buffer, 1] > 0 else size
        places[buffer] = room_for(frame, buffers[buffer, 0] * unit)
    return True


@_compiled
def side(row: Numbers, first: int, buffers: Numbers, places: Numbers, size: int) -> _Side:
    """Place a block of a step, as `execution_arrays._side`."""
    buffer, start, items = row[first], row[first + 1], row[first + 2]
    repeat, stride = row[first + 3], row[first + 4]
    unit = buffers[buffer, 1] if buffers[buffer, 1] > 0 else size
    address, nbytes = places[buffer] + start * unit, items * repeat * unit
    if repeat == 1 or stride == items:
        return address, nbytes, 1, nbytes, nbytes, unit, True
    return address, nbytes, repeat, items * unit, stride * unit, unit, False


@_compiled
def end(one: _Side) -> int:
    """Give the address after the last byte."""
    return one[0] + (one[2] - 1) * one[4] + one[3]


@_compiled
def overlap(one: _Side, other: _Side) -> bool:
    """Tell whether the bytes from first to last have some in common."""
    return bool(one[0] < end(other) and other[0] < end(one))


@_compiled
def message(frame: Numbers, row: Numbers, block: _Side, longest: int, kind: int) -> None:
    """Write a message, packed where its block has gaps."""
    nbytes = block[1]
    row[loop.PIECE] = min(nbytes, longest)
    frame[at.NEEDED_ROOM] += max((nbytes + longest - 1) // longest, 1)
    if block[6]:
        row[loop.WAY] = loop.SEND if kind == _SEND else loop.RECEIVE
        return
    packed = room_for(frame, nbytes)
    row[loop.ADDRESS] = packed
    row[loop.RUNS], row[loop.RUN_BYTES] = block[2], block[3]
    if kind == _SEND:
        row[loop.WAY], row[loop.SOURCE], row[loop.TARGET] = loop.PACKED_SEND, block[0], packed
        row[loop.SOURCE_GAP], row[loop.TARGET_GAP] = block[4], block[3]
    else:
        row[loop.WAY], row[loop.SOURCE], row[loop.TARGET] = loop.PACKED_RECEIVE, packed, block[0]
        row[loop.SOURCE_GAP], row[loop.TARGET_GAP] = block[3], block[4]


@_compiled
def copy(row: Numbers, source: _Side, block: _Side) -> bool:
    """Write a copy; False if Python must do it."""
    if (source[0] == block[0] and source[1:4] == block[1:4] and source[5:] == block[5:]
        and (block[6] or source[4] == block[4])):  # fmt: skip
        row[loop.WAY] = loop.NOTHING
        return True
    runs, run_bytes = max(source[2], block[2]), min(source[3], block[3])
    if source[1] != block[1] or runs * run_bytes != source[1]:
        return False
    if source[2] > 1 and block[2] > 1 and source[3] != block[3]:
        return False
    if not (source[6] and block[6]) and (overlap(source, block) or source[5] != block[5]):
        return False
    row[loop.WAY], row[loop.SOURCE], row[loop.TARGET] = loop.COPY, source[0], block[0]
    row[loop.RUNS], row[loop.RUN_BYTES] = runs, run_bytes
    row[loop.SOURCE_GAP] = source[4] if source[2] > 1 else run_bytes
    row[loop.TARGET_GAP] = block[4] if block[2] > 1 else run_bytes
    return True


@_compiled
def reduction(frame: Numbers, row: Numbers, source: _Side, block: _Side) -> bool:
    """Write a reduction; False if Python must do it."""
    size, alignment = frame[at.ITEMSIZE], frame[at.ALIGNMENT]
    if frame[at.COMBINES] == 0 or not (source[6] and block[6]):
        return False
    if source[5] != size or block[5] != size or source[1] != block[1]:
        return False
    if source[0] % alignment != 0 or block[0] % alignment != 0:
        return False
    if source[0] != block[0] and overlap(source, block):
        return False
    row[loop.WAY], row[loop.SOURCE], row[loop.TARGET] = loop.REDUCE, source[0], block[0]
    row[loop.ITEMS] = block[1] // size
    return True


@_compiled
def write_rows(frame: Numbers, table: Numbers, buffers: Numbers, places: Numbers) -> bool:
    """Write what the compiled loop reads; False if Python must run a step."""
    n, size = len(table), frame[at.ITEMSIZE]
    rows = table_at(frame[at.AT_ROWS], n, loop.WIDTH)
    longest, levels = array_at(frame[at.AT_LONGEST], n), array_at(frame[at.AT_LEVELS], n)
    sent = array_at(frame[at.AT_SENT], frame[at.N_LEVELS])
    sent[:] = 0
    fine = True
    for step in range(n):
        row, kind = rows[step], table[step, columns.KIND]
        block = side(table[step], columns.BLOCK, buffers, places, size)
        row[loop.ADDRESS], row[loop.NBYTES], row[loop.PIECE] = block[0], block[1], block[1]
        row[loop.SOURCE :] = 0
        if kind in (_SEND, _RECEIVE):
            message(frame, row, block, longest[step], kind)
            if kind == _SEND:
                sent[levels[step]] += block[1]
            continue
        source = side(table[step], columns.SOURCE, buffers, places, size)
        if kind == _REDUCE:
            fine = reduction(frame, row, source, block) and fine
        else:
            fine = copy(row, source, block) and fine
    return fine


@_compiled
def refill(frame: Numbers) -> int:
    """Write the numbers of a count; touches no step where the count does not fit."""
    values = array_at(frame[at.AT_VALUES], frame[at.N_ENTRIES])
    evaluate(table_at(frame[at.AT_ENTRIES], frame[at.N_ENTRIES], 3), values, frame[at.COUNT])
    if not holds(table_at(frame[at.AT_CONDITIONS], frame[at.N_CONDITIONS], 2), values):
        return at.OTHER
    flat = array_at(frame[at.AT_TABLE], frame[at.N_STEPS] * columns.WIDTH)
    cells = table_at(frame[at.AT_CELLS], frame[at.N_CELLS], 2)
    for place in range(len(cells)):
        flat[cells[place, 0]] = values[cells[place, 1]]
    buffers = table_at(frame[at.AT_BUFFERS], frame[at.N_BUFFERS], 2)
    sizes = table_at(frame[at.AT_SIZES], frame[at.N_SIZES], 2)
    for place in range(len(sizes)):
        buffers[sizes[place, 0], 0] = values[sizes[place, 1]]
    places = array_at(frame[at.AT_PLACES], frame[at.N_BUFFERS])
    frame[at.NEEDED_BYTES] = frame[at.NEEDED_ROOM] = 0
    if not lay_out(frame, buffers, places):
        return at.REFUSED
    table = table_at(frame[at.AT_TABLE], frame[at.N_STEPS], columns.WIDTH)
    fine = write_rows(frame, table, buffers, places)
    # First: without room, places are such as other memory has.
    if frame[at.NEEDED_BYTES] > frame[at.SCRATCH_BYTES] or frame[at.NEEDED_ROOM] > frame[at.ROOM]:
        return at.GROW
    return at.DONE if fine else at.REFUSED


def _refill(frame_at: int) -> int:
    """Refill the bound plan of a frame."""
    return refill(array_at(frame_at, at.FRAME))


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give the function that Python calls, and its signature."""
    assert name == "refill", name
    return _refill, types.int64(types.int64)
