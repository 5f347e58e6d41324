"""Index-value pairs as one message: a header, indices, values.

Indices of a message ascend, each once, from ``low`` to below ``high``.  They
are written in whichever form takes the fewest bytes:

* gaps between neighbours, 7 bits a byte: 1 byte an index where at least 8 %
  of the indices are there, 2 bytes from 0.1 % on;
* one bit for each index that there may be;
* nothing, where all are there;
* int64, for the caller's own pairs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.pairs.pair_loops import LOOPS
from closeranks.comms.jit import code_cache

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Values = NDArray[Any]

#: Bytes of a header: `PairHeader` as int64.
HEADER_BYTES: Final = 64
#: Sections begin at multiples of this many bytes.
_ALIGNED: Final = 8
#: Ops on pairs, and the types that values may have.
OPS: Final = ("SUM", "PROD", "MIN", "MAX")
TYPES: Final = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
_HALVES: Final = frozenset({"float16", "bfloat16"})
_LOOPS: Final = "closeranks.collectives.pairs.pair_loops"


class IndexForm(IntEnum):
    """How the indices of a message are written."""

    WHOLE = 0
    GAPS = 1
    BITS = 2
    ALL = 3


class PairHeader(NamedTuple):
    """What a message begins with.

    Attributes
    ----------
    form : int
        A `IndexForm`.
    pairs : int
        How many there are.
    low, high : int
        Bounds of the indices.
    kind : int
        Op and dtype, see `kind_of`.
    width : int
        Values of an index.
    start : int
        Byte at which the indices begin.
    index_bytes : int
        Bytes of the indices.
    """

    form: int
    pairs: int
    low: int
    high: int
    kind: int
    width: int
    start: int
    index_bytes: int

    @property
    def op(self) -> str:
        """Name of the op."""
        return OPS[self.kind // len(TYPES)]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a value."""
        return dtype_named(TYPES[self.kind % len(TYPES)])

    @property
    def value_start(self) -> int:
        """Byte at which the values begin."""
        return aligned(self.start + self.index_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return aligned(self.value_start + self.pairs * self.width * self.dtype.itemsize)


def aligned(nbytes: int) -> int:
    """Round up to where a section may begin."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype of `TYPES`."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    short: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return short


def kind_of(op: str, dtype: np.dtype[Any]) -> int:
    """Return the number of an op and a dtype in headers."""
    return OPS.index(op) * len(TYPES) + TYPES.index(dtype.name)


def header_of(message: Bytes) -> PairHeader:
    """Read the header of a message."""
    return PairHeader(*message[:HEADER_BYTES].view(np.int64).tolist())


@cache
def _compiled(name: str) -> Callable[..., int] | None:
    """Return a loop as machine code; None where nothing can be compiled."""
    try:
        address = code_cache.address_of(_LOOPS, name)
    except ImportError:
        return None
    count = len(LOOPS[_plain(name)][1])
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(address)


def _plain(name: str) -> str:
    """Return the name of a loop without a dtype."""
    return name if name in LOOPS else name.rpartition(".")[0]


def loop(name: str, *arguments: Any) -> int:
    """Run a loop of `pair_loops`.

    Local.

    Parameters
    ----------
    name : str
        As for its ``exported``.
    *arguments : ndarray or int
        Contiguous arrays of the types it takes, and numbers.

    Returns
    -------
    int
        What it returns.
    """
    code = _compiled(name)
    if code is None:
        with np.errstate(all="ignore"):
            return LOOPS[_plain(name)][0](*arguments)
    return code(
        *(
            one.__array_interface__["data"][0] if isinstance(one, np.ndarray) else one
            for one in arguments
        )
    )


def indices_of(message: Bytes, header: PairHeader) -> Ints:
    """Return the indices of a message, shape (pairs,); a view if they are whole."""
    coded = message[header.start : header.start + header.index_bytes]
    if header.form == IndexForm.WHOLE:
        return coded.view(np.int64)
    if header.form == IndexForm.ALL:
        return np.arange(header.low, header.high)
    found = np.empty(header.pairs, np.int64)
    write_indices(coded, header, found)
    return found


def write_indices(coded: Bytes, header: PairHeader, out: Ints) -> None:
    """Decode the indices of a message into ``out``, shape (pairs,)."""
    match header.form:
        case IndexForm.WHOLE:
            out[:] = coded.view(np.int64)
        case IndexForm.ALL:
            out[:] = np.arange(header.low, header.high)
        case IndexForm.GAPS:
            loop("read_gaps", coded, header.pairs, header.low, out)
        case _:
            loop("read_bits", coded, header.index_bytes, header.low, out)


def values_of(message: Bytes, header: PairHeader) -> Values:
    """Return the values of a message, a view of shape (pairs * width,)."""
    dtype, first = header.dtype, header.value_start
    nbytes = header.pairs * header.width * dtype.itemsize
    return message[first : first + nbytes].view(dtype)


def form_of(indices: Ints, low: int, high: int) -> tuple[IndexForm, int]:
    """Choose the form that takes the fewest bytes; returns it and its bytes."""
    pairs, span = len(indices), high - low
    if pairs == span:
        return IndexForm.ALL, 0
    bits = -(-span // 8)
    if bits <= pairs:  # gaps take one byte each at least
        return IndexForm.BITS, bits
    gaps = loop("gap_bytes", indices, pairs, low)
    return (IndexForm.GAPS, gaps) if gaps < bits else (IndexForm.BITS, bits)


def write_header(out: Bytes, header: PairHeader) -> None:
    """Write a header into the front of ``out``."""
    out[:HEADER_BYTES].view(np.int64)[:] = header


def write_message(out: Bytes, header: PairHeader, indices: Ints, values: Values) -> None:
    """Write a message into the front of ``out``.

    Parameters
    ----------
    out : ndarray of uint8
        Of ``header.nbytes`` at least.
    header : PairHeader
        With the form and its bytes.
    indices, values : ndarray
        The pairs, shapes (pairs,) and (pairs * width,).
    """
    write_header(out, header)
    coded = out[header.start : header.start + header.index_bytes]
    match header.form:
        case IndexForm.WHOLE:
            coded.view(np.int64)[:] = indices
        case IndexForm.GAPS:
            loop("write_gaps", indices, header.pairs, header.low, coded)
        case IndexForm.BITS:
            coded[:] = 0
            loop("write_bits", indices, header.pairs, header.low, coded)
    values_of(out, header)[:] = values


#: Gives memory for so many pairs: indices, values.
Places = Callable[[int], tuple[Ints, Values]]


def combine_into(
    parts: list[tuple[Ints, Values]], low: int, high: int, op: str, width: int, places: Places
) -> None:
    """Combine pairs of several ranks, in this order.

    Parameters
    ----------
    parts : list of (ndarray, ndarray)
        Indices, ascending and each once, and values of each; one at least.
    low, high : int
        Bounds of all indices.
    op : str
        One of `OPS`.
    width : int
        Values of an index.
    places : callable
        Takes the number of pairs, and gives the memory that takes them.
        Halves are combined in float32.
    """
    if len(parts) == 1:
        indices, values = places(len(parts[0][0]))
        indices[:], values[:] = parts[0]
        return
    dtype = parts[0][1].dtype
    wide = np.dtype(np.float32) if dtype.name in _HALVES else dtype
    total = sum(len(indices) for indices, _ in parts)
    is_dense = high - low <= _SPARSEST * total
    merged = None if is_dense else _merged([indices for indices, _ in parts])
    span = high - low if merged is None else len(merged)
    taken, sums = np.zeros(span, np.uint8), np.empty(span * width, wide)
    for indices, values in parts:
        where, base = indices, low
        if merged is not None:
            where, base = np.empty(len(indices), np.int64), 0
            loop("places", merged, indices, len(indices), where)
        terms = np.ascontiguousarray(values, wide)
        loop(f"combine.{op}.{wide.name}", taken, sums, where, terms, len(where), width, base)
    if merged is not None:
        indices, values = places(span)
        indices[:], values[:] = merged, sums
        return
    indices, values = places(int(np.count_nonzero(taken)))
    loop("taken_places", taken, span, 0, indices)
    if len(indices) < span and wide == dtype:
        rows = sums.reshape(span, width)
        rows.take(indices, axis=0, out=values.reshape(-1, width), mode="clip")
    else:
        values[:] = sums.reshape(span, width)[indices].reshape(-1)
    indices += low


def combined(
    parts: list[tuple[Ints, Values]], low: int, high: int, op: str, width: int
) -> tuple[Ints, Values]:
    """Combine pairs as `combine_into`, into new arrays, which it returns."""
    found: list[tuple[Ints, Values]] = []

    def places(pairs: int) -> tuple[Ints, Values]:
        found.append((np.empty(pairs, np.int64), np.empty(pairs * width, parts[0][1].dtype)))
        return found[0]

    combine_into(parts, low, high, op, width, places)
    return found[0]


def without_repeats(indices: Ints, values: Values, op: str, width: int) -> tuple[Ints, Values]:
    """Combine pairs of equal index, in their order.

    Parameters
    ----------
    indices : ndarray of int64
        Ascending; an index may come more than once.
    values : ndarray, shape (pairs * width,)
        Of each.
    op : str
        One of `OPS`.
    width : int
        Values of an index.

    Returns
    -------
    indices : ndarray of int64
        Ascending, each once.
    values : ndarray, shape (pairs * width,)
        Of the type given; halves are combined in float32.
    """
    is_new = np.ones(len(indices), np.bool_)
    is_new[1:] = indices[1:] > indices[:-1]
    if is_new.all():
        return indices, values
    dtype, merged = values.dtype, indices[is_new]
    wide = np.dtype(np.float32) if dtype.name in _HALVES else dtype
    taken, sums = np.zeros(len(merged), np.uint8), np.empty(len(merged) * width, wide)
    where, terms = np.cumsum(is_new) - 1, np.ascontiguousarray(values, wide)
    loop(f"combine.{op}.{wide.name}", taken, sums, where, terms, len(where), width, 0)
    return merged, sums.astype(dtype, copy=False)


#: With fewer pairs than one of so many indices, lists are merged; else an array is filled.
_SPARSEST: Final = 16


def _merged(lists: list[Ints]) -> Ints:
    """Return the indices of any list, ascending; merges halves of the lists."""
    if len(lists) == 1:
        return lists[0]
    half = len(lists) // 2
    left, right = _merged(lists[:half]), _merged(lists[half:])
    out = np.empty(len(left) + len(right), np.int64)
    return out[: loop("merge", left, len(left), right, len(right), out)]
