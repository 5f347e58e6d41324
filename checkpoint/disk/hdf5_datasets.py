"""Which data sets a rank's extent becomes in a file, and their names.

Pure, and the same for who writes and who reads: names follow from the nest,
places from the description.  What a description from a file says is checked
here against what the file may hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from closeranks.checkpoint.placement.stripe_layout import slice_of
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.container_types import is_mapping
from closeranks.checkpoint.state.dtype_json import read_dtype
from closeranks.checkpoint.state.rank_image import Description
from closeranks.errors import CheckpointError

#: What a name in a file cannot have in it, or what would mean something else there.
_AWKWARD: Final = re.compile("[%/\0-\x1f\x7f\ud800-\udfff]|^[.]+$")
#: Axes that HDF5 knows; an array of more lies there in one row.
_AXES: Final = 32
_BYTE: Final = np.dtype(np.uint8)


@dataclass(frozen=True)
class Part:
    """One data set of a rank, or what it is made of.

    Attributes
    ----------
    name : str
        Below the rank's group, such as ``model/layers/0/weight``.
    at : int
        Where its bytes start in the data of the extent.
    nbytes : int
        How many there are.
    dtype : dtype
        Of its elements.
    shape : tuple of int
        Of the data set.
    attributes : dict of str to object
        What is said beside it: ``kind``; of a shard ``global_shape`` and its
        ``offset``; of a slice ``shape`` of the whole and its ``start`` in that, in
        elements, or ``start_byte`` where it starts or ends inside of one.
    """

    name: str
    at: int
    nbytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


def parts(description: Description, ranks: int, number: int) -> list[Part]:
    """Give the data sets of a rank, in the order of their bytes.

    Local.

    Parameters
    ----------
    description : Description
        What the rank has kept; whatever it says is checked.
    ranks, number : int
        Ranks of its erasure group, and which of them it is.

    Returns
    -------
    list of Part
        One for each leaf of which the rank has bytes, or which is empty.

    Raises
    ------
    CheckpointError
        If the description contradicts itself.
    """
    first, last = slice_of(description.alike, ranks, number)
    if description.alike < 0 or not last - first <= description.own <= description.body:
        raise _contradiction(f"{last - first} bytes in a place of {description.own}")
    try:
        every = list(names(description.shape))
        if [at for at, _ in every] != list(range(len(description.leaves))):
            raise _contradiction("leaves that are not there")
        found: list[Part] = []
        for at, name in every:
            entry = description.leaves[at]
            if "at" in entry:
                found += _parts(name, entry, description, first, last)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _contradiction(f"{type(error).__name__}: {error}") from error
    return sorted(found, key=lambda part: (part.at, part.nbytes))


def _parts(
    name: str, entry: dict[str, Any], description: Description, first: int, last: int
) -> Iterator[Part]:
    """Give what of an entry a rank has that keeps such a slice of what is alike."""
    shape = list(entry["shape"])
    numbers = (*shape, entry["at"], *entry.get("offset", ()), *entry.get("global_shape", ()))
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers):
        raise _contradiction(f"{name} of shape {str(shape)[:80]}")
    size, place = state_tree.nbytes(entry), entry["at"]
    if place + size > (description.alike if entry["alike"] else description.body - description.own):
        raise _contradiction(f"{name} is longer than what holds it")
    dtype = read_dtype(entry["dtype"]) if "dtype" in entry else _BYTE
    said = {"kind": entry["kind"]}
    if not entry["alike"]:
        said |= {word: entry[word] for word in ("global_shape", "offset") if word in entry}
        yield _whole(name, description.own + place, size, dtype, shape, said)
        return
    low, high = max(first, place), min(last, place + size)
    if (low, high) == (place, place + size):
        yield _whole(name, low - first, size, dtype, shape, said | {"shape": shape, "start": 0})
    elif low < high:
        yield _slice(name, low - first, (low - place, high - place), dtype, said | {"shape": shape})


def _whole(
    name: str, at: int, size: int, dtype: np.dtype[Any], shape: list[int], said: dict[str, Any]
) -> Part:
    """Give the part of an entry that lies in one piece."""
    if not dtype.itemsize:  # which HDF5 has no type for
        return Part(name, at, 0, _BYTE, (0,), said | {"shape": shape})
    if len(shape) > _AXES:
        return Part(name, at, size, dtype, (size // dtype.itemsize,), said | {"shape": shape})
    return Part(name, at, size, dtype, tuple(shape), said)


def _slice(
    name: str, at: int, run: tuple[int, int], dtype: np.dtype[Any], said: dict[str, Any]
) -> Part:
    """Give part of an entry, by elements where it is cut between them."""
    start, stop = run
    each = dtype.itemsize
    if start % each or stop % each:
        return Part(name, at, stop - start, _BYTE, (stop - start,), said | {"start_byte": start})
    length = (stop - start) // each
    return Part(name, at, stop - start, dtype, (length,), said | {"start": start // each})


def names(shape: Any) -> Iterator[tuple[int, str]]:
    """Give the leaves of a nest and what they are called in a file: each otherwise.

    Local.

    Parameters
    ----------
    shape : object
        As `closeranks.checkpoint.state.state_tree.flatten` has given it.

    Yields
    ------
    int, str
        Number and name, such as ``model/layers/0/weight``.  ``%2f`` stands for a
        slash in a key, ``7%int`` for the number 7 beside the text.
    """
    return _names(shape, "")


def _names(shape: Any, above: str) -> Iterator[tuple[int, str]]:
    """Give the leaves below some place of a nest."""
    if isinstance(shape, int):
        yield shape, above or "value"
        return
    ((kind, items),) = shape.items()
    has_keys = is_mapping(kind)
    texts = {key for key, _ in items if isinstance(key, str)} if has_keys else set()
    for at, item in enumerate(items):
        key, below = item if has_keys else (at, item)
        name = _plain(str(key)) + ("%int" if type(key) is int and str(key) in texts else "")
        yield from _names(below, f"{above}/{name}" if above else name)


def _plain(key: str) -> str:
    """Write a key so that it is a name in a file."""
    return _AWKWARD.sub(lambda met: "".join(f"%{ord(c):02x}" for c in met[0]), key) or "%"


def _contradiction(problem: str) -> CheckpointError:
    """Say that a description is none."""
    return CheckpointError("restore", f"a description that contradicts itself: {problem}")
