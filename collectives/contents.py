"""Contents of the leaves of a state: bytes that are equal where leaves are."""

from __future__ import annotations

import math
import pickle
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Bytes of a digest.
DIGEST_BYTES: Final = 16
#: Bytes of a long double that hold its value: x87 has 10, and pads them.
_LONG_BYTES: Final = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize

Leaf: TypeAlias = Any


class Entry(NamedTuple):
    """What a leaf is, without its bytes.

    Attributes
    ----------
    digest : bytes
        Equal for leaves that are equal bit for bit; padding is no part of them.
    kind : str
        "array", "masked" (with a mask), "scalar" (NumPy's numbers), "str_",
        "bytes_" (its texts) or "object".
    dtype : numpy.dtype or None
        Of an array or scalar; None of anything else.
    shape : tuple of int
        Of an array.
    nbytes : int
        How long it is, see `to_bytes`.
    """

    digest: bytes
    kind: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    nbytes: int


def entry_of(leaf: Leaf) -> Entry:
    """Describe a leaf; reads every byte of it.  Local."""
    data, kind = to_bytes(leaf), _kind(leaf)
    has_dtype = kind in ("array", "masked", "scalar")
    dtype, shape = (leaf.dtype, leaf.shape) if has_dtype else (None, ())
    said = (kind, "" if dtype is None else _described(dtype), shape)
    digest = blake2b(repr(said).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES)
    digest.update(data.data)
    return Entry(digest.digest(), kind, dtype, shape, data.nbytes)


def to_bytes(leaf: Leaf) -> NDArray[np.uint8]:
    """Give the bytes of a leaf; a contiguous array without padding gives its own."""
    if _kind(leaf) in ("str_", "bytes_"):  # pickled as it is, it loses zeros at its end
        leaf = leaf[:]
    if not isinstance(leaf, np.generic | np.ndarray):
        return np.frombuffer(pickle.dumps(leaf), np.uint8)
    data = _without_padding(np.asarray(leaf))
    if isinstance(leaf, np.ma.MaskedArray):
        return np.concatenate([data, _without_padding(np.ma.getmaskarray(leaf))])
    return data


def from_bytes(entry: Entry, data: NDArray[np.uint8], old: Leaf) -> Leaf:
    """Make a leaf of its bytes, in the memory of the old one where it fits.

    Parameters
    ----------
    entry : Entry
        What it is.
    data : ndarray of uint8
        As `to_bytes` gives them.
    old : object
        What is there now, or None.

    Returns
    -------
    object
        The array ``old`` itself, with new contents, or something new; that is
        read-only where an array ``old`` is.
    """
    if entry.dtype is None:
        plain = pickle.loads(data.tobytes())
        return plain if entry.kind == "object" else getattr(np, entry.kind)(plain)
    size = math.prod(entry.shape) * entry.dtype.itemsize
    new = _array(entry.dtype, entry.shape, data[:size])
    if entry.kind == "masked":
        mask = _array(np.ma.make_mask_descr(entry.dtype), entry.shape, data[size:])
        new = np.ma.MaskedArray(new, mask)
    if entry.kind == "scalar":
        return new.copy()[()]
    return _taken(new, old)


def _taken(new: NDArray[Any], old: Leaf) -> Leaf:
    """Give the old array with new contents, or a copy of the new one."""
    alike = _kind(old) == _kind(new) and (old.dtype, old.shape) == (new.dtype, new.shape)
    if alike and old.flags.writeable:
        np.ma.getdata(old)[...] = np.ma.getdata(new)
        if isinstance(new, np.ma.MaskedArray):
            _mask(old, np.ma.getmaskarray(new))
        return old
    new = new.copy()
    if isinstance(old, np.ndarray):
        new.flags.writeable = old.flags.writeable or old is np.ma.masked  # which always is not
    return new


def _mask(array: np.ma.MaskedArray[Any, Any], mask: NDArray[Any]) -> None:
    """Give an array a mask, a hard one too."""
    is_hard = array.hardmask
    array.soften_mask()
    array.mask = mask
    if is_hard:
        array.harden_mask()


def _kind(leaf: Leaf) -> str:
    if isinstance(leaf, np.ndarray):
        return "masked" if isinstance(leaf, np.ma.MaskedArray) else "array"
    if isinstance(leaf, np.character):
        return "str_" if isinstance(leaf, str) else "bytes_"
    return "scalar" if isinstance(leaf, np.generic) else "object"


def _array(dtype: np.dtype[Any], shape: tuple[int, ...], data: NDArray[np.uint8]) -> NDArray[Any]:
    """Give an array in the memory of its bytes."""
    if dtype.itemsize == 0:  # which no view can have
        return np.ndarray(shape, dtype)
    return data.view(dtype).reshape(shape)


def _without_padding(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Give the bytes of an array, zeros where they mean nothing."""
    if array.dtype.itemsize == 0:
        return np.empty(0, np.uint8)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    meant = _meant(array.dtype)
    if meant.all():
        return raw
    rows = raw.reshape(-1, meant.size).copy()
    rows[:, ~meant] = 0
    return rows.reshape(-1)


@lru_cache(maxsize=64)
def _meant(dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Tell which bytes of an element mean anything."""
    meant = np.zeros(dtype.itemsize, bool)
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        meant[:] = np.tile(_meant(inner), math.prod(shape))
    elif dtype.fields is not None:
        for field, start, *_ in dtype.fields.values():
            meant[start : start + field.itemsize] |= _meant(field)
    elif dtype.type in (np.longdouble, np.clongdouble):  # types of other packages have its letters
        numbers = meant.reshape(-1, np.dtype(np.longdouble).itemsize)
        numbers[:, :_LONG_BYTES] = True
        meant[:] = meant if dtype.isnative else numbers[:, ::-1].reshape(-1)
    else:
        meant[:] = True
    return meant


def _described(dtype: np.dtype[Any]) -> str:
    """Name a dtype; the same name for those that are equal, however they were made."""
    if dtype.subdtype is not None:
        inner, shape = dtype.subdtype
        return f"{shape} of {_described(inner)}"
    if dtype.names is not None:
        assert dtype.fields is not None
        parts = [(name, dtype.fields[name][1], _described(dtype.fields[name][0]))
                 for name in dtype.names]  # fmt: skip
        return f"{parts} in {dtype.itemsize}"
    return f"{dtype.name} {dtype.str}"
