"""Elements of the fuzzer's messages: their types, the ops they know, their values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_ORDERED = ("MPI.SUM", "MPI.PROD", "MPI.MAX", "MPI.MIN")
_BITS = ("MPI.BAND", "MPI.BOR", "MPI.BXOR")
_LOGICAL = ("MPI.LAND", "MPI.LOR", "MPI.LXOR")
_OWN = ("XOR", "LEFT", "RIGHT")
_INTEGER = (*_ORDERED, *_BITS, *_LOGICAL, *_OWN, "ADD")
_REAL = (*_ORDERED, *_OWN, "ADD", "cr.MEAN")
_COMPLEX = ("MPI.SUM", "MPI.PROD", *_OWN, "ADD", "cr.MEAN")
_HALF = (*_ORDERED, "cr.MEAN")


@dataclass(frozen=True)
class Kind:
    """One type of elements.

    Attributes
    ----------
    dtype : numpy.dtype
        As NumPy knows it; of a derived type, bytes.
    mpi : str
        The MPI type, as an expression; empty where MPI has none.
    ops : tuple of str
        Reductions it knows, as expressions; none of derived types.
    plain : bool
        Whether NumPy arrays of it need no MPI type beside them.
    extent : int
        Bytes from one element to the next.
    """

    dtype: np.dtype[Any]
    mpi: str
    ops: tuple[str, ...] = ()
    plain: bool = True
    extent: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes from one element to the next."""
        return self.extent or self.dtype.itemsize

    @property
    def is_derived(self) -> bool:
        """Whether only MPI knows where its data lie."""
        return bool(self.extent)


def _pair(first: str) -> np.dtype[Any]:
    return np.dtype([("value", first), ("place", "i4")], align=True)


_LOCATED = ("MPI.MAXLOC", "MPI.MINLOC")
KINDS: dict[str, Kind] = {
    **{
        f"{name}": Kind(np.dtype(name), f"MPI.{mpi}", _INTEGER)
        for name, mpi in {
            "i1": "SIGNED_CHAR", "i2": "SHORT", "i4": "INT", "i8": "LONG",
            "u1": "UNSIGNED_CHAR", "u2": "UNSIGNED_SHORT", "u4": "UNSIGNED", "u8": "UNSIGNED_LONG",
        }.items()
    },
    "long long": Kind(np.dtype("i8"), "MPI.LONG_LONG", _INTEGER, plain=False),
    "int64": Kind(np.dtype("i8"), "MPI.INT64_T", _INTEGER, plain=False),
    "uint32": Kind(np.dtype("u4"), "MPI.UINT32_T", _INTEGER, plain=False),
    "affine": Kind(np.dtype("u8"), "MPI.UINT64_T", ("AFFINE",), plain=False),
    "byte": Kind(np.dtype("u1"), "MPI.BYTE", (*_BITS, *_OWN), plain=False),
    "f4": Kind(np.dtype("f4"), "MPI.FLOAT", _REAL),
    "f8": Kind(np.dtype("f8"), "MPI.DOUBLE", _REAL),
    "long double": Kind(np.dtype("g"), "MPI.LONG_DOUBLE", ("MPI.SUM", "MPI.MAX", "cr.MEAN")),
    "c8": Kind(np.dtype("c8"), "MPI.C_FLOAT_COMPLEX", _COMPLEX),
    "c16": Kind(np.dtype("c16"), "MPI.C_DOUBLE_COMPLEX", _COMPLEX),
    "bool": Kind(np.dtype("?"), "MPI.C_BOOL", _LOGICAL),
    "bfloat16": Kind(np.dtype(ml_dtypes.bfloat16), "", _HALF),
    "f2": Kind(np.dtype("f2"), "", _HALF),
    "swapped": Kind(np.dtype(">f8"), ""),
    "double int": Kind(_pair("f8"), "MPI.DOUBLE_INT", _LOCATED, plain=False),
    "float int": Kind(_pair("f4"), "MPI.FLOAT_INT", _LOCATED, plain=False),
    "two int": Kind(_pair("i4"), "MPI.TWOINT", _LOCATED, plain=False),
    "contiguous": Kind(
        np.dtype("u1"), "MPI.DOUBLE.Create_contiguous(3).Commit()", plain=False, extent=24
    ),
    "vector": Kind(
        np.dtype("u1"), "MPI.INT.Create_vector(2, 1, 3).Commit()", plain=False, extent=16
    ),
    "indexed": Kind(
        np.dtype("u1"), "MPI.SHORT.Create_indexed([1, 2], [3, 0]).Commit()", plain=False, extent=8
    ),
    "struct": Kind(
        np.dtype("u1"),
        "MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]).Commit()",
        plain=False,
        extent=16,
    ),
    "resized": Kind(
        np.dtype("u1"), "MPI.FLOAT.Create_resized(0, 12).Commit()", plain=False, extent=12
    ),
}  # fmt: skip

#: Types that `array.array` and `ctypes` have, by the letter and the name there.
LETTERS = {
    "i1": "b", "i2": "h", "i4": "i", "i8": "l", "u1": "B", "u2": "H", "u4": "I", "u8": "L",
    "f4": "f", "f8": "d",
}  # fmt: skip
C_NAMES = {
    "i1": "c_int8", "i2": "c_int16", "i4": "c_int32", "i8": "c_int64", "u1": "c_uint8",
    "u2": "c_uint16", "u4": "c_uint32", "u8": "c_uint64", "f4": "c_float", "f8": "c_double",
}  # fmt: skip

#: Three times the longest message, for arrays with gaps, and where it may start.
_ROOM = (13 << 20) + (1 << 16)


@cache
def noise() -> Bytes:
    """Random bytes, the same everywhere."""
    return np.random.default_rng(9).integers(0, 256, _ROOM, np.uint8)


@cache
def _small(most: int) -> NDArray[np.int8]:
    return (noise() % most).astype(np.int8)


def put_noise(out: Bytes, rank: int, salt: int) -> None:
    """Fill memory with bytes that tell ranks and calls apart."""
    start = (rank * 7919 + salt * 10477) % (1 << 16)
    out[:] = noise()[start : start + len(out)]


def put_values(out: NDArray[Any], op: str | None, rank: int, salt: int) -> None:
    """Fill elements with values whose reduction is exact in any order.

    Parameters
    ----------
    out : ndarray
        Elements of a `Kind`'s dtype.
    op : str or None
        The reduction; None where bytes are only moved.
    rank, salt : int
        Other values for each.
    """
    start = (rank * 7919 + salt * 10477) % (1 << 16)
    if out.dtype.names:
        out["value"] = _small(5)[start : start + len(out)]
        out["place"] = (np.arange(len(out)) * 3 + rank + salt) % 1000
    elif out.dtype.kind == "b":
        out[:] = _small(2)[start : start + len(out)]
    elif op is None or op in (*_OWN, *_BITS, "AFFINE"):
        raw = np.empty(len(out) * out.itemsize, np.uint8)
        put_noise(raw, rank, salt)
        out[:] = raw.view(out.dtype)
    else:
        most = {"MPI.PROD": 3, "ADD": 2}.get(op, 2 if op in _LOGICAL else 23)
        lowest = int(op in ("MPI.PROD", "ADD"))
        out[:] = _small(most)[start : start + len(out)] + np.int8(lowest)
        if out.dtype.kind == "c":
            out.imag = _small(2)[start + 1 : start + 1 + len(out)]


def meant(kind: Kind) -> NDArray[np.bool_] | None:
    """Tell which bytes of an element mean anything; None where all do."""
    if kind.dtype.names:
        mask = np.zeros(kind.dtype.itemsize, bool)
        for dtype, start, *_ in (kind.dtype.fields or {}).values():
            mask[start : start + dtype.itemsize] = True
        return None if mask.all() else mask
    if kind.dtype.char == "g" and np.finfo(np.longdouble).nmant == 63:
        return np.arange(kind.dtype.itemsize) < 10
    return None


def combined(op: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Reduce vectors by hand, for types that the library has no name for."""
    wide = [part.astype(np.float32) for part in parts]
    ufunc = {"MPI.PROD": np.multiply, "MPI.MAX": np.maximum, "MPI.MIN": np.minimum}
    total = wide[0]
    for part in wide[1:]:
        total = ufunc.get(op, np.add)(total, part)
    return total.astype(parts[0].dtype)


def divide(out: NDArray[Any], by: int) -> None:
    """Divide elements in place as a mean does, half precision through float32."""
    if out.dtype.itemsize == 2:
        out[:] = out.astype(np.float32) / np.float32(by)
    else:
        out /= by
