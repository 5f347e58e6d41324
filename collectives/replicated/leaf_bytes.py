"""The bytes of a leaf of a state, and whether its numbers are finite.

Two leaves have equal bytes if and only if they are equal.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray


def illness(leaf: object) -> str:
    """Tell whether the numbers of a leaf hold "NaN" or "Inf"; else "".  Local.

    Numbers inside of structures count, those under a mask do not.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        found = {_illness(part.compressed()) for part in _parts(leaf)}
    elif isinstance(leaf, np.ndarray | np.generic | float | complex):
        found = {_illness(part) for part in _parts(np.asarray(leaf))}
    else:
        return ""
    return max(found, default="")  # of "", "Inf" and "NaN" the worst


def _parts(values: NDArray[Any]) -> Iterator[Any]:
    """Give the numbers of a structure, field by field."""
    if values.dtype.names is None:
        yield values
        return
    for name in values.dtype.names:
        yield from _parts(values[name])


def _illness(values: NDArray[Any]) -> str:
    if not _may_be_ill(values.dtype) or np.isfinite(values).all():
        return ""
    return "NaN" if np.isnan(values).any() else "Inf"


def _may_be_ill(dtype: np.dtype[Any]) -> bool:
    """Tell whether not every number of a dtype is finite.

    Short floats of other packages (bfloat16, float8) say that they are voids.
    """
    if dtype.kind != "V":
        return dtype.kind in "fc"
    if dtype.type is np.void:
        return False
    try:
        np.isfinite(np.empty(0, dtype))
    except TypeError:
        return False
    return True


#: Bytes of a digest.
DIGEST_BYTES: Final = 16
#: Bytes of a long double that hold its value: x87 has 10, and pads them.
_LONG_BYTES: Final = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize

#: Classes of arrays that can be made anew; others may have more than their numbers.
CLASSES: Final[tuple[type[NDArray[Any]], ...]] = (
    np.ndarray, np.matrix, np.recarray, np.ma.MaskedArray
)  # fmt: skip

Leaf: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Form:
    """An array without its numbers.

    Parameters
    ----------
    cls : type
        One of `CLASSES`.
    fill : bytes
        The fill value of a masked array, if it is an unusual one.
    axes : tuple of int
        As they lie in memory, the outermost first: for arrays that are made anew,
        as is the next.
    is_hard : bool
        Whether the mask of a masked array is.
    """

    cls: type[NDArray[Any]]
    fill: bytes
    axes: tuple[int, ...] = field(compare=False)
    is_hard: bool = field(compare=False)


class Entry(NamedTuple):
    """A leaf without its bytes.

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
    form : Form or None
        Of an array.
    nbytes : int
        How long it is, see `to_bytes`.
    """

    digest: bytes
    kind: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    form: Form | None
    nbytes: int


def entry_of(leaf: Leaf) -> Entry:
    """Describe a leaf; reads every byte of it.  Local."""
    data, kind = to_bytes(leaf), _kind(leaf)
    has_dtype = kind in ("array", "masked", "scalar")
    dtype, shape = (leaf.dtype, leaf.shape) if has_dtype else (None, ())
    form = _form(leaf) if isinstance(leaf, np.ndarray) else None
    said: tuple[Any, ...] = (kind, "" if dtype is None else _described(dtype), shape)
    if form is not None:
        said += (form.cls.__name__, form.fill)
    digest = blake2b(repr(said).encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES)
    digest.update(data.data)
    return Entry(digest.digest(), kind, dtype, shape, form, data.nbytes)


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
        Type and form of the leaf.
    data : ndarray of uint8
        As `to_bytes` gives them.
    old : object
        The present leaf, or None.

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
    if entry.form is None:
        return new.copy()[()]
    mask = None
    if entry.kind == "masked":
        mask = _array(np.ma.make_mask_descr(entry.dtype), entry.shape, data[size:])
    return _taken(new, mask, entry.form, old)


def _taken(new: NDArray[Any], mask: NDArray[Any] | None, form: Form, old: Leaf) -> NDArray[Any]:
    """Give the old array with new contents, or one of its own memory."""
    is_fit = isinstance(old, np.ndarray) and _class(old) is form.cls and old.flags.writeable
    if is_fit and (old.dtype, old.shape) == (new.dtype, new.shape):
        np.ma.getdata(old)[...] = new
        made: NDArray[Any] = old
    else:
        made = _laid(new, form.axes).view(form.cls)
    if isinstance(made, np.ma.MaskedArray) and mask is not None:
        is_hard = made.hardmask if made is old else form.is_hard
        _mask(made, mask if made is old else _laid(mask, form.axes), form.fill)
        if is_hard:
            made.harden_mask()
    if made is not old and isinstance(old, np.ndarray):
        made.flags.writeable = old.flags.writeable or old is np.ma.masked  # which always is not
    return made


def _laid(array: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Copy an array into memory of its own, its axes in this order."""
    made = np.empty([array.shape[axis] for axis in axes], array.dtype)
    made = made.transpose(np.argsort(axes))
    made[...] = array
    return made


def _mask(array: np.ma.MaskedArray[Any, Any], mask: NDArray[Any], fill: bytes) -> None:
    """Give an array a mask, soft for now, and its fill value."""
    array.soften_mask()
    array.mask = mask
    if fill != _fill(array):
        given: Any = _array(array.dtype, (), np.frombuffer(fill, np.uint8)) if fill else None
        array.fill_value = given


def _form(array: NDArray[Any]) -> Form:
    """Give the form of an array, without its numbers."""
    axes = tuple(range(array.ndim))
    if not array.flags.c_contiguous:
        axes = tuple(sorted(axes, key=lambda axis: -abs(array.strides[axis])))
    if isinstance(array, np.ma.MaskedArray):
        return Form(_class(array), _fill(array), axes, array.hardmask)
    return Form(_class(array), b"", axes, is_hard=False)


def _fill(array: np.ma.MaskedArray[Any, Any]) -> bytes:
    """Give the fill value of an array, if it is not the default."""
    given = vars(array).get("_fill_value")  # to ask for it sets it, which not all can
    if given is None:
        return b""
    try:
        usual = np.asarray(np.ma.default_fill_value(array.dtype), array.dtype)
    except (TypeError, ValueError):  # NumPy has none for a type of another package, nor sets one
        return b""
    said = _without_padding(np.asarray(given, array.dtype)).tobytes()
    return b"" if said == _without_padding(usual).tobytes() else said


def _class(array: NDArray[Any]) -> type[NDArray[Any]]:
    """Give the class to make an array of: one of a file is made in memory."""
    found: type[NDArray[Any]] = next(cls for cls in reversed(CLASSES) if isinstance(array, cls))
    return found


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
