"""The machine code of shortcuts: reads the messages of a call, and serves it.

`closeranks.collectives.fastpath.shortcut` says what a shortcut does.  The code
talks to the interpreter through the functions of its C interface, whose
addresses stand in the record.  Importing this module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from closeranks.collectives.fastpath.shortcut_begun_code import (
    begun_directly,
    is_full,
    taken,
)
from closeranks.collectives.fastpath.shortcut_layout import (
    ALL_KEPT,
    ARRAY,
    AT_ROOT,
    BEGUN_AT,
    BLOCKED,
    BRIEF,
    BY_TOTAL,
    CLEAR,
    DATA,
    DECREF,
    DIRECT,
    DTYPE_AT,
    E_BYTES,
    E_CALLS,
    E_FINISH,
    E_FORM,
    E_FRAME,
    E_GIVEN,
    E_GIVEN_BLOCKS,
    E_GIVEN_BYTES,
    E_GIVEN_ITEM,
    E_GIVEN_TYPE,
    E_IN_PLACE,
    E_LEAVE,
    E_LONG_KERNEL,
    E_NEXT,
    E_OP,
    E_QUEUE,
    E_ROOT,
    E_SEQUENCE,
    E_SHORT,
    E_SHORT_KERNEL,
    E_STATE,
    E_TAKEN,
    E_TAKEN_BLOCKS,
    E_TAKEN_BYTES,
    E_TAKEN_ITEM,
    E_TAKEN_TYPE,
    EQUAL,
    ERROR,
    EXCEPTION,
    EXPLAIN,
    FETCH,
    FLAGS_AT,
    GIVEN,
    IN_PLACE,
    INCREF,
    INSIDE_AT,
    ITEMS,
    KEPT,
    KNOWN,
    MATCHES,
    MEAN,
    MEMBERS,
    MOVES,
    NDIM_AT,
    NO_ARRAY,
    NONE,
    NORMALIZE,
    NOT_BEGUN,
    ONE,
    OP_NAME,
    PAIR,
    PART,
    PLACE,
    PUT_BACK,
    READABLE,
    REFUSED,
    REQUEST,
    RESTORE,
    ROOT,
    ROOT_NAME,
    ROW,
    ROW_CALLS,
    ROW_ENTRY,
    ROW_KNOWN,
    ROW_LEFT,
    SAVE,
    SECOND,
    SHAPE_AT,
    SIZED,
    TRACE,
    TYPE,
    UNREADABLE_WORD,
    VECTOR,
    VECTORCALL,
    WHOLE,
    WRITABLE,
    class_of,
)
from closeranks.collectives.fastpath.shortcut_reading_code import (
    add,
    apart_on_host,
    is_of_one_type,
    items_of,
    length,
    number,
    op_of,
    place,
    type_of,
    unit_of,
    vector,
)
from closeranks.comms.jit.c_calls import (
    call0,
    call1,
    call2,
    call3,
    call4,
    is_true,
    kernel5,
    set_word,
    word,
)

_compiled: Callable[..., Any] = numba.njit(error_model="numpy")


_class_of = _compiled(class_of)


@_compiled
def find(record: int, nbytes: int) -> int:
    """Give the row of the class of a size; -1 if not known, or to be looked at."""
    if place(record, MEAN) != 0:
        nbytes //= place(record, MEMBERS)
    at = place(record, KNOWN) + 8 * ROW * _class_of(nbytes)
    return at if place(at, ROW_KNOWN) != 0 and word(place(at, ROW_LEFT)) > 0 else -1


@_compiled
def root_of(record: int, args: int, nargs: int, names: int) -> int:
    """Give the root, 0 where none is named; -1 if a keyword or the root is unknown."""
    root, at = 0, place(record, ROOT)
    if 0 <= at < nargs:
        root = number(record, word(args + 8 * at))
    if names != 0:
        for index in range(word(names + DATA)):
            name = word(names + ITEMS + 8 * index)
            if name == place(record, ROOT_NAME):
                root = number(record, word(args + 8 * (nargs + index)))
            elif name != place(record, OP_NAME):
                return -1
    return root if root < place(record, MEMBERS) else -1


@_compiled
def fits(record: int, args: int) -> int:
    """Give the bytes that all arguments agree on, or -1."""
    nbytes = 0
    sized, whole, equal = place(record, SIZED), place(record, WHOLE), place(record, EQUAL)
    blocks = place(record, MEMBERS) if place(record, BLOCKED) != 0 else 1
    if sized >= 0:
        nbytes = length(record, word(args + 8 * sized), blocks)
    if whole >= 0:
        members = place(record, MEMBERS)
        if length(record, word(args + 8 * whole), members) != nbytes * members:
            return -1
    if equal >= 0 and length(record, word(args + 8 * equal), blocks) != nbytes:
        return -1
    if place(record, MOVES) != 0 and not is_of_one_type(record, args):
        return -1
    at = place(record, VECTOR)
    if at >= 0:
        own, total = vector(record, word(args + 8 * at))
        part, second = place(record, PART), place(record, SECOND)
        if part >= 0 and length(record, word(args + 8 * part), 1) != own:
            return -1
        if second >= 0 and vector(record, word(args + 8 * second))[0] != own:
            return -1
        if own < 0:
            return -1
        if place(record, BY_TOTAL) != 0:
            return total
    return nbytes


@_compiled
def looked_up(record: int, args: int, nargs: int, names: int) -> int:
    """Give the row of the known class of a call; -1 if it goes the long way."""
    given = place(record, GIVEN)
    most = max(place(record, SIZED), place(record, VECTOR), place(record, PART), given)
    most = max(most, place(record, WHOLE), place(record, EQUAL), place(record, SECOND))
    if nargs <= most or (given >= 0 and word(args + 8 * given) == place(record, NONE)):
        return -1
    root = root_of(record, args, nargs, names)
    if root < 0:
        return -1
    if place(record, ROOT) >= 0 and root != place(record, PLACE):
        nbytes = 0  # what the root alone looks at may be anything here
        if place(record, SIZED) >= 0:
            nbytes = length(record, word(args + 8 * place(record, SIZED)), 1)
    else:
        nbytes = fits(record, args)
    return find(record, nbytes) if nbytes >= 0 else -1


@_compiled
def array_of(record: int, thing: int, dtype: int, flags: int, blocks: int) -> tuple[int, int]:
    """Give memory and items of a message of a type that lies side by side, else 0.

    An array, alone or with a plain type and a count of its blocks.
    """
    parts_at, parts = items_of(record, thing)
    array = word(parts_at) if parts > 0 else thing
    if word(array + TYPE) != place(record, ARRAY) or word(array + DTYPE_AT) != dtype:
        return 0, 0
    if word(array + FLAGS_AT) & flags != flags:
        return 0, 0
    if parts > 0:
        nbytes = length(record, thing, blocks)
        is_alike = nbytes >= 0 and type_of(record, thing) == dtype
        unit = unit_of(record, word(parts_at + 8 * (parts - 1)))
        return (word(array + DATA), nbytes // unit) if is_alike else (0, 0)
    shape, items = word(array + SHAPE_AT), 1
    for axis in range(word(array + NDIM_AT) & 0xFFFFFFFF):
        items *= word(shape + 8 * axis)
    return word(array + DATA), items


@_compiled
def given_of(record: int, entry: int, args: int, flags: int) -> int:
    """Give the memory of the first array of a call, 0 if it is of another kind."""
    dtype, blocks = place(entry, E_GIVEN_TYPE), place(entry, E_GIVEN_BLOCKS)
    found, items = array_of(record, word(args), dtype, flags, blocks)
    set_word(entry + 8 * E_GIVEN_BYTES, items * place(entry, E_GIVEN_ITEM))
    return found


@_compiled
def taken_of(record: int, entry: int, args: int) -> int:
    """Give the memory of the second array of a call, 0 if it is of another kind."""
    dtype, blocks = place(entry, E_TAKEN_TYPE), place(entry, E_TAKEN_BLOCKS)
    found, items = array_of(record, word(args + 8), dtype, WRITABLE, blocks)
    set_word(entry + 8 * E_TAKEN_BYTES, items * place(entry, E_TAKEN_ITEM))
    return found


@_compiled
def block_of(entry: int, nbytes: int, blocks: int) -> bool:
    """Tell whether an array holds blocks of the size that was noted, if one was."""
    block, noted = nbytes // place(entry, blocks), place(entry, E_BYTES)
    if block * place(entry, blocks) != nbytes or noted not in (-1, block):
        return False
    set_word(entry + 8 * E_BYTES, block)
    return True


@_compiled
def arrays_of(record: int, entry: int, args: int, nargs: int) -> tuple[int, int]:
    """Give the memory that a call reads and that it writes, 0 for what does not suit."""
    form, at_root = place(entry, E_FORM), place(record, PLACE) == place(entry, E_ROOT)
    if form == NO_ARRAY:
        set_word(entry + 8 * E_BYTES, 0)
        return -1, -1
    set_word(entry + 8 * E_BYTES, -1)
    if form == ONE or (form == AT_ROOT and not at_root):
        only = given_of(record, entry, args, READABLE if form != ONE or at_root else WRITABLE)
        fits_one = block_of(entry, place(entry, E_GIVEN_BYTES), E_GIVEN_BLOCKS)
        return (only, only) if fits_one else (0, 0)
    if nargs < 2:
        return 0, 0
    taken = taken_of(record, entry, args)
    if not block_of(entry, place(entry, E_TAKEN_BYTES), E_TAKEN_BLOCKS):
        return 0, 0
    if place(entry, E_IN_PLACE) != 0 and word(args) == place(record, IN_PLACE):
        return taken, taken
    given = given_of(record, entry, args, READABLE)
    return (
        (given, taken) if block_of(entry, place(entry, E_GIVEN_BYTES), E_GIVEN_BLOCKS) else (0, 0)
    )


@_compiled
def suits(record: int, entry: int, args: int, nargs: int, names: int) -> bool:
    """Tell whether a kernel may serve a call now; notes its arrays."""
    if word(place(entry, E_QUEUE)) != 0:
        return False
    reduces, rooted = place(entry, E_OP) != 0, place(record, ROOT) >= 0
    if names != 0 and not reduces and not rooted:
        return False
    if nargs > 2 + reduces + (place(entry, E_FORM) == AT_ROOT):
        return False
    if reduces and op_of(record, args, nargs, names) != place(entry, E_OP):
        return False
    if rooted and root_of(record, args, nargs, names) != place(entry, E_ROOT):
        return False
    given, taken = arrays_of(record, entry, args, nargs)
    set_word(entry + 8 * E_GIVEN, given)
    set_word(entry + 8 * E_TAKEN, taken)
    return given != 0 and taken != 0 and is_apart(record, entry, args)


@_compiled
def is_apart(record: int, entry: int, args: int) -> bool:
    """Tell whether the arrays that were noted share no memory, or are meant to."""
    form, at_root = place(entry, E_FORM), place(record, PLACE) == place(entry, E_ROOT)
    both = form == PAIR or (form == AT_ROOT and at_root)
    if not both or word(args) == place(record, IN_PLACE):
        return True
    given, taken = place(entry, E_GIVEN), place(entry, E_TAKEN)
    before = given + place(entry, E_GIVEN_BYTES) <= taken
    return before or taken + place(entry, E_TAKEN_BYTES) <= given


@_compiled
def run(record: int, entry: int, args: int, nargs: int, names: int) -> int:
    """Run a kernel on the arrays that were noted; gives None, or 0 and an error."""
    number, nbytes = place(entry, E_SEQUENCE), place(entry, E_BYTES)
    set_word(number, word(number) + 1)
    set_word(entry + 8 * E_CALLS, place(entry, E_CALLS) + 1)
    brief, before = nbytes < BRIEF, word(place(entry, E_STATE))
    kernel = place(entry, E_SHORT_KERNEL if nbytes <= place(entry, E_SHORT) else E_LONG_KERNEL)
    thread = 0 if brief else call0(place(record, SAVE))
    over = kernel5(
        kernel, place(entry, E_FRAME), place(entry, E_STATE),
        place(entry, E_GIVEN), place(entry, E_TAKEN), nbytes,
    )  # fmt: skip
    if not brief:
        call1(place(record, RESTORE), thread)
    if not over:
        finish = place(entry, E_FINISH)
        result = call4(place(record, VECTORCALL), finish, args, nargs, names)
        if result == 0 and word(place(entry, E_STATE)) == before:
            left(record, entry, args, nargs, names)
        return result
    call1(place(record, INCREF), place(record, NONE))
    return place(record, NONE)


@_compiled
def left(record: int, entry: int, args: int, nargs: int, names: int) -> None:
    """Leave a kernel that is not over to others; raise what has come between.

    Who waits for its end cannot: a signal's handler runs before its first line.
    """
    at = record + 8 * ERROR
    call4(place(record, FETCH), at, at + 8, at + 16, 0)
    kind, error, trace = word(at), word(at + 8), word(at + 16)
    result = 0
    for _ in range(2):  # another signal may come between this, too
        result = call4(place(record, VECTORCALL), place(entry, E_LEAVE), args, nargs, names)
        if result != 0:
            break
        call1(place(record, CLEAR), 0)
    if result != 0:
        call1(place(record, DECREF), result)
    call3(place(record, PUT_BACK), kind, error, trace)


@_compiled
def is_kept(record: int, args: int, nargs: int) -> bool:
    """Tell whether what a call overwrites has to be kept first."""
    at = place(record, KEPT)
    if at == ALL_KEPT:
        return True
    if at < 0 or at >= nargs:
        return False
    given = word(args + 8 * at)
    return given == place(record, IN_PLACE) or given == place(record, NONE)


@_compiled
def explained(record: int) -> int:
    """Raise what the user is told of the error that the library has raised; gives 0.

    The call is not made the long way again: the others may have ended it.
    """
    at = record + 8 * ERROR
    call4(place(record, FETCH), at, at + 8, at + 16, 0)
    call4(place(record, NORMALIZE), at, at + 8, at + 16, 0)
    kind, error, trace = word(at), word(at + 8), word(at + 16)
    if trace != 0:
        call2(place(record, TRACE), error, trace)
    result = call4(place(record, VECTORCALL), place(record, EXPLAIN), at + 8, 1, 0)
    call1(place(record, DECREF), kind)
    call1(place(record, DECREF), error)
    call1(place(record, DECREF), trace)
    return result


@_compiled
def shortcut(itself: int, args: int, nargs: int, names: int) -> int:
    """Do what a known call does: call the library, or a kernel; else call the method.

    A C function of the kind METH_FASTCALL | METH_KEYWORDS; ``itself`` is the
    tuple (library's method, ours, record).
    """
    record = word(word(itself + ITEMS + 16) + DATA)
    far = is_kept(record, args, nargs) or is_full(record)
    at = -1 if far else looked_up(record, args, nargs, names)
    entry = 0 if at < 0 else place(at, ROW_ENTRY)
    if at >= 0 and place(record, DIRECT) != 0:
        begun = begun_directly(record, args, nargs, names)
        if begun == REFUSED:
            at = -1
        elif begun != NOT_BEGUN:
            set_word(at + 8 * ROW_CALLS, place(at, ROW_CALLS) + (begun != 0))
            return begun
    if at >= 0 and entry == 0 and apart_on_host(record, args, nargs):
        add(place(record, BEGUN_AT), 1)
        add(place(record, INSIDE_AT), 1)
        result = call4(place(record, VECTORCALL), word(itself + ITEMS), args, nargs, names)
        add(place(record, INSIDE_AT), -1)
        if result != 0:
            add(at + 8 * ROW_CALLS, 1)
            add(place(at, ROW_LEFT), -1)
            return taken(record, result, args, nargs)
        if not is_true(place(record, MATCHES), place(record, UNREADABLE_WORD)):
            is_told = is_true(place(record, MATCHES), place(record, EXCEPTION))
            if not is_told or place(record, REQUEST) == 0:
                return explained(record) if is_told else 0
        call1(place(record, CLEAR), 0)
        add(place(record, BEGUN_AT), -1)  # the long way counts it
    while entry != 0:
        if suits(record, entry, args, nargs, names):
            add(place(record, BEGUN_AT), 1)
            add(place(at, ROW_LEFT), -1)
            return run(record, entry, args, nargs, names)
        entry = place(entry, E_NEXT)
    ours = word(itself + ITEMS + 8)
    return call4(place(record, VECTORCALL), ours, args, nargs, names)


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give the function that a builtin's description names, and its signature."""
    return {"shortcut": shortcut}[name], types.int64(*(types.int64,) * 4)
