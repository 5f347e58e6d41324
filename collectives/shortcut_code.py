"""What a shortcut does, as machine code; see `closeranks.collectives.shortcut`.

Importing this imports Numba.  The code talks to the interpreter through the
functions of its C interface, whose addresses stand in the record.  All places
stand in this file because the compiled code is kept on disk and made anew only
when this file changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

#: Places in a record (int64). Functions of the interpreter.
VECTORCALL, GETATTR, AS_SSIZE, DECREF, CLEAR, MATCHES = range(6)
#: Objects: names, the errors that send a call the long way, None, and two types.
NBYTES, ITEMSIZE, ROOT_NAME, OP_NAME, UNREADABLE, NONE, LIST, TUPLE = range(6, 14)
#: Address of the plain datatypes, each with its bytes; 0 ends them.
PLAIN: Final = 14
#: The communicator's size and rank.
MEMBERS, PLACE = range(15, 17)
#: The rule: which argument tells the size, which has as many blocks as members,
#: which has equal bytes, which are vectors, which is a vector's own block, which
#: must be given, which is the root; -1 for none. BY_TOTAL: a vector tells the size.
SIZED, WHOLE, EQUAL, VECTOR, SECOND, PART, GIVEN, ROOT, BY_TOTAL = range(17, 26)
#: Address of the known sizes, `SLOTS` of them, each with its calls; -1 where there is none.
KNOWN: Final = 26
RECORD: Final = 27
SLOTS: Final = 256

#: Where the first item of a tuple lies, the type of an object, and the memory of an array;
#: there lies the length of lists and tuples, and one word further the items of a list.
_ITEMS: Final = tuple.__basicsize__
_TYPE: Final = object.__basicsize__ - 8
_DATA: Final = object.__basicsize__
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_intrinsic: Any = intrinsic


@_intrinsic
def word(context: Any, address: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Read an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.load(builder.inttoptr(arguments[0], _I64.as_pointer()))

    return types.int64(types.int64), code


@_intrinsic
def set_word(context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        builder.store(arguments[1], builder.inttoptr(arguments[0], _I64.as_pointer()))

    return types.void(types.int64, types.int64), code


def _calling(result: Any, function: Any, given: list[Any], builder: Any) -> Any:
    kind = ir.FunctionType(result, [_I64] * len(given))
    return builder.call(builder.inttoptr(function, kind.as_pointer()), given)


@_intrinsic
def call1(context: Any, function: Any, a: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a)``; a result that is none is not to be read."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 2), code


@_intrinsic
def call2(context: Any, function: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a, b)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 3), code


@_intrinsic
def call4(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a, b, c, d)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 5), code


@_intrinsic
def is_true(context: Any, function: Any, a: Any) -> Any:  # noqa: ARG001
    """Call ``int function(a)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        answer = _calling(_I32, arguments[0], arguments[1:], builder)
        return builder.icmp_signed("!=", answer, _I32(0))

    return types.boolean(*[types.int64] * 2), code


_compiled: Callable[..., Any] = numba.njit(cache=True)


@_compiled
def place(record: int, column: int) -> int:
    """Read a column of a record."""
    return word(record + 8 * column)


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
def items_of(record: int, spec: int) -> tuple[int, int]:
    """Give where the items of a list or a tuple stand, and how many; else 0."""
    kind = word(spec + _TYPE)
    if kind == place(record, LIST):
        return word(spec + _DATA + 8), word(spec + _DATA)
    if kind == place(record, TUPLE):
        return spec + _ITEMS, word(spec + _DATA)
    return 0, 0


@_compiled
def unit_of(record: int, datatype: int) -> int:
    """Give the bytes of a plain datatype; 0 of anything else."""
    at = place(record, PLAIN)
    while word(at) != 0:
        if word(at) == datatype:
            return word(at + 8)
        at += 16
    return 0


@_compiled
def length(record: int, spec: int) -> int:
    """Give the bytes of a message; -1 if they cannot be told.

    ``array``, ``[array, type]`` or ``[array, count, type]``.
    """
    items, parts = items_of(record, spec)
    if items == 0:
        return attribute(record, spec, NBYTES)
    if parts < 2 or parts > 3:
        return -1
    room = attribute(record, word(items), NBYTES)
    unit = unit_of(record, word(items + 8 * (parts - 1)))
    if unit == 0 or room < 0 or room % unit != 0:
        return -1
    if parts == 2:
        return room
    count = number(record, word(items + 8))
    return count * unit if 0 <= count <= room // unit else -1


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
    if word(counts + _TYPE) != place(record, LIST) or known != place(record, MEMBERS):
        return -1, -1
    room = attribute(record, buffer, NBYTES)
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
def slot_of(nbytes: int) -> int:
    """Give the only slot where a size may stand."""
    return (nbytes ^ nbytes >> 8 ^ nbytes >> 16) % SLOTS


@_compiled
def find(record: int, nbytes: int) -> int:
    """Give the place of a known size; -1 if it is not known."""
    at = place(record, KNOWN) + 16 * slot_of(nbytes)
    return at if word(at) == nbytes else -1


@_compiled
def root_of(record: int, args: int, nargs: int, names: int) -> int:
    """Give the root, 0 where none is named; -1 if a keyword or the root is unknown."""
    root, at = 0, place(record, ROOT)
    if 0 <= at < nargs:
        root = number(record, word(args + 8 * at))
    if names != 0:
        for index in range(word(names + _DATA)):
            name = word(names + _ITEMS + 8 * index)
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
    if sized >= 0:
        nbytes = length(record, word(args + 8 * sized))
    if whole >= 0:
        blocks = nbytes * place(record, MEMBERS)
        if length(record, word(args + 8 * whole)) != blocks:
            return -1
    if equal >= 0 and length(record, word(args + 8 * equal)) != nbytes:
        return -1
    at = place(record, VECTOR)
    if at >= 0:
        own, total = vector(record, word(args + 8 * at))
        part, second = place(record, PART), place(record, SECOND)
        if part >= 0 and length(record, word(args + 8 * part)) != own:
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
    """Give the place of the known size of a call; -1 if it goes the long way."""
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
            nbytes = length(record, word(args + 8 * place(record, SIZED)))
    else:
        nbytes = fits(record, args)
    return find(record, nbytes) if nbytes >= 0 else -1


def shortcut(itself: int, args: int, nargs: int, names: int) -> int:
    """Call the library if the call is a known one, else the method.

    A C function of the kind METH_FASTCALL | METH_KEYWORDS; ``itself`` is the
    tuple (library's method, ours, record).
    """
    record = word(word(itself + _ITEMS + 16) + _DATA)
    at = looked_up(record, args, nargs, names)
    if at >= 0:
        result = call4(place(record, VECTORCALL), word(itself + _ITEMS), args, nargs, names)
        if result != 0:
            set_word(at + 8, word(at + 8) + 1)
            return result
        if not is_true(place(record, MATCHES), place(record, UNREADABLE)):
            return 0
        call1(place(record, CLEAR), 0)
    ours = word(itself + _ITEMS + 8)
    return call4(place(record, VECTORCALL), ours, args, nargs, names)


#: The compiled function; its address is good as long as the process lives.
CODE: Final[Any] = numba.cfunc(types.int64(*[types.int64] * 4), cache=True)(shortcut)
