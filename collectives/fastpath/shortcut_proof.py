"""The proof that compiled shortcuts read the objects of this interpreter rightly.

Before the first of them is used the code is called with sentinels of every
form that it serves, and of some that it must leave alone.  A library and a
kernel that only note what they are given stand in for the real ones.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.call_key import size_class
from closeranks.collectives.engine.interpreter import SHORTCUT
from closeranks.collectives.fastpath import shortcut_layout as code
from closeranks.collectives.fastpath.shortcut_record import UNCOUNTED, empty_table, record_of
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import FAST, KEYWORDS, builtin

#: Elements of a sentinel, and ranks of the communicator that it is passed to.
_COUNT, _RANKS = 6, 2
#: Of a call with two buffers of which the first tells the size, and the second has a block a
#: rank; see `closeranks.collectives.fastpath.shortcut.Rule`, whose order this has.
_GATHER: Final = (0, 1, -1, -1, -1, -1, -1, -1, 0, 0, 2, 1, 0)
_VECTOR: Final = (-1, -1, -1, 1, -1, 0, -1, -1, 1, 0, 2, 1, 1)
_REDUCE: Final = (1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 2, 0, 0)
_F8: Final = np.dtype(np.float64)


def holds() -> bool:
    """Tell whether the code serves what it should, and nothing else.  Local."""
    return all(_library_calls()) and all(_kernel_calls())


def _called(rule: tuple[int, ...], entry: int = 0) -> Callable[..., str]:
    """Give what a shortcut calls that knows the class of 6 numbers of 8 bytes."""
    table = empty_table()
    table[size_class(8 * _COUNT)] = 1, 0, entry, UNCOUNTED.ctypes.data
    member: Any = SimpleNamespace(size=_RANKS, rank=0)
    words = np.zeros(1, np.int64), np.zeros(1, np.int64)
    record = record_of(member, rule, table, _not_told, words)
    itself = (lambda *_, **__: "library", lambda *_, **__: "ours", *record)
    found = builtin("proof", "", code_cache.address_of(*SHORTCUT), FAST | KEYWORDS, itself)
    return lambda *arguments, **named: found(*arguments, **named) or "kernel"


def _not_told(error: MPI.Exception) -> Any:
    raise error


def _forms(values: np.ndarray[Any, Any], blocks: int = 1) -> Iterator[Any]:
    """Give all that may be passed for an array; a count is that of one block."""
    count = len(values) // blocks
    yield values
    yield values.reshape(2, -1)
    yield values.data
    yield [values, MPI.DOUBLE]
    yield (values, MPI.DOUBLE)
    yield [values, count, MPI.DOUBLE]
    yield (values.view(np.uint8), count, MPI.DOUBLE)


def _library_calls() -> Iterator[bool]:
    """Say of one call after the other whether it went where it should."""
    gather, gatherv, reduce = map(_called, (_GATHER, _VECTOR, _REDUCE))
    own, whole, counts = np.ones(_COUNT), np.ones(_COUNT * _RANKS), [_COUNT] * _RANKS
    for given in _forms(own):
        yield all(gather(given, taken) == "library" for taken in _forms(whole, _RANKS))
        yield gatherv(given, [whole, counts]) == "library"
        yield gatherv(given, [whole, counts, MPI.DOUBLE]) == "library"
    yield gather(own[1:], whole[_RANKS:]) == "library"  # of the same class
    yield gather(np.ones(_COUNT * _RANKS), np.ones(_COUNT * _RANKS**2)) == "ours"  # of another
    yield reduce(MPI.IN_PLACE, own) == reduce(whole[:_COUNT], own, op=MPI.SUM) == "library"
    integers = np.ones(_COUNT * _RANKS, np.int64)
    listed = array.array("d", whole)  # tells no bytes
    for taken in (whole[:-1], integers, [whole, 1, MPI.DOUBLE], [whole, MPI.LONG], listed, None):
        yield gather(own, taken) == "ours"
    yield gather(whole[:_COUNT], whole) == reduce(own, own) == "ours"  # in the same memory
    yield gatherv(own, [whole, [_COUNT] * 3]) == gatherv(own, [whole, tuple(counts)]) == "ours"
    yield gather(own, whole, unknown=1) == gather(own) == "ours"


def _kernel_calls() -> Iterator[bool]:
    """Say of one call after the other whether a kernel had the right addresses."""
    noted: list[tuple[int, ...]] = []

    def note(*given: int) -> int:
        noted.append(given)
        return 1

    def note_long(*given: int) -> int:
        return note(*given, 0)

    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)
    kernels = kind(note), kind(note_long)
    entry, numbers = np.zeros(code.ENTRY, np.int64), np.zeros(3, np.int64)
    entry[[code.E_SHORT_KERNEL, code.E_LONG_KERNEL]] = [
        ctypes.cast(one, ctypes.c_void_p).value or 0 for one in kernels
    ]
    entry[code.E_SHORT] = 8 * _COUNT
    entry[code.E_STATE] = entry[code.E_QUEUE] = numbers.ctypes.data
    entry[code.E_SEQUENCE], entry[code.E_FORM] = numbers[1:].ctypes.data, code.PAIR
    entry[[code.E_GIVEN_TYPE, code.E_TAKEN_TYPE]] = id(_F8)
    entry[[code.E_GIVEN_ITEM, code.E_TAKEN_ITEM]] = 8
    entry[[code.E_GIVEN_BLOCKS, code.E_TAKEN_BLOCKS]] = 1
    entry[code.E_OP], entry[code.E_IN_PLACE] = id(MPI.SUM), 1
    reduce = _called(_REDUCE, entry.ctypes.data)
    own, room = np.ones(_COUNT), np.zeros(_COUNT)
    fixed = own.copy()
    fixed.flags.writeable = False
    for given in (own, own.reshape(3, 2), fixed):
        yield reduce(given, room) == "kernel"
        yield noted.pop()[2:] == (given.ctypes.data, room.ctypes.data, 8 * _COUNT)
    for spec in ([own, MPI.DOUBLE], (own, MPI.DOUBLE), [own, _COUNT, MPI.DOUBLE]):
        yield reduce(spec, [room, MPI.DOUBLE]) == reduce(spec, room) == "kernel"
        yield noted.pop()[2:] == (own.ctypes.data, room.ctypes.data, 8 * _COUNT)
    yield reduce([own, _COUNT - 1, MPI.DOUBLE], [room, _COUNT - 1, MPI.DOUBLE]) == "kernel"
    yield noted.pop()[2:] == (own.ctypes.data, room.ctypes.data, 8 * _COUNT - 8)
    yield reduce(own, room, MPI.SUM) == reduce(own, room, op=MPI.SUM) == "kernel"
    yield reduce(MPI.IN_PLACE, room) == "kernel"
    yield noted.pop()[2:4] == (room.ctypes.data, room.ctypes.data)
    less, more = np.ones((2, _COUNT - 1)), np.ones((2, _COUNT + 1))  # of the same class
    yield reduce(*less) == reduce(*more) == "kernel"
    yield noted.pop()[4:] == (more[0].nbytes, 0)
    yield noted.pop()[4:] == (less[0].nbytes,)
    noted.clear()
    odd = np.zeros(8 * _COUNT + 1, np.uint8)[1:].view(_F8)
    strided, turned = np.ones(2 * _COUNT)[::2], np.ones((3, 2)).T.copy().T
    others: list[Any] = [strided, turned, odd, own[1:], own.astype(">f8"), own.astype("i8")]
    others += [[own, MPI.INT64_T], [own, _COUNT + 1, MPI.DOUBLE], [own, _COUNT], [own], []]
    others += [[own.view(np.uint8), MPI.DOUBLE], [own, 1, MPI.DOUBLE], [room, MPI.DOUBLE]]
    for other in (*others, own.data, own.view(np.recarray), room, None):
        yield reduce(other, room) == "ours"
    yield reduce(*np.ones((2, 2 * _COUNT))) == "ours"  # of another class
    yield reduce(own, fixed) == reduce(own, room, MPI.MAX) == reduce(own, room, 1, 2) == "ours"
    yield not noted
