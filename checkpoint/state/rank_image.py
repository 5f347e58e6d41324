"""The bytes of a rank as they are kept: a description, then data.

The description stands with the data, so it is coded with them, and comes back
from parity as they do.  At its front it has check sums of itself and of all
sums of the data: they tell whether a rebuilt extent equals the saved one.

A value that is equal on all ranks of a group is kept once: each rank has a
slice of it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from closeranks.checkpoint.erasure.crc32c import Sums, crc32c
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.stripe_layout import ALIGNED, Size, slice_of
from closeranks.checkpoint.state.device_staging import Anywhere, bytes_of
from closeranks.checkpoint.state.state_tree import StateLeaf
from closeranks.errors import CheckpointError

_MAGIC: Final = b"clsrrank"
#: Of a description; a newer one is refused.
FORMAT: Final = 1
#: Magic, format, bytes of JSON, bytes of data, check sum of JSON, of the sums of the data.
_PROLOGUE: Final = struct.Struct("<8sIQQII")
#: Bytes before the text of a description.
FRONT: Final = 64


class ImagePart(NamedTuple):
    """Bytes of the caller's, and where they go.

    Attributes
    ----------
    at : int
        Place in the data of the extent.
    data : ndarray of uint8, or DeviceBytes
        The caller's memory, or a copy where that is in several pieces on the host.
    """

    at: int
    data: Anywhere


@dataclass(frozen=True)
class Extent:
    """The bytes that a rank is going to keep.

    Made by `describe`.

    Attributes
    ----------
    text : bytes
        The description, as JSON.
    body : int
        Bytes of data.
    sources : tuple of ImagePart
        Ascending, without overlap; gaps between them are zero.
    """

    text: bytes
    body: int
    sources: tuple[ImagePart, ...]

    @property
    def size(self) -> Size:
        """Its bytes."""
        return Size(FRONT + len(self.text), self.body)

    def head(self, sums: Sequence[Sums]) -> Bytes:
        """Write the front of the extent.

        Local.

        Parameters
        ----------
        sums : sequence of ndarray of uint32
            Of the chunks of the data, in their order.

        Returns
        -------
        ndarray of uint8
            As long as the size says.
        """
        of_sums = crc32c(b"".join(part.tobytes() for part in sums))
        words = FORMAT, len(self.text), self.body, crc32c(self.text), of_sums
        front = _PROLOGUE.pack(_MAGIC, *words).ljust(FRONT, b"\0")
        return np.frombuffer(front + self.text, np.uint8)


def describe(
    shape: Any, leaves: Sequence[StateLeaf], alike: Sequence[bool], ranks: int, at: int
) -> Extent:
    """Decide which bytes a rank keeps, and where.

    Local; arrays are looked at, not copied, unless they lie in several pieces on
    the host.

    Parameters
    ----------
    shape : object
        The tree, see `closeranks.checkpoint.state.state_tree.flatten`.
    leaves : sequence of StateLeaf
        The leaves of the tree.
    alike : sequence of bool
        Which of them all ranks have alike.
    ranks, at : int
        Ranks of the group, and which of them this one is.

    Returns
    -------
    Extent
        With a slice of its own of the values that are alike.
    """
    entries: list[dict[str, Any]] = []
    lots: tuple[list[ImagePart], list[ImagePart]] = [], []
    ends = [0, 0]
    for leaf, same in zip(leaves, alike, strict=True):
        entry = {**leaf.described, "alike": same}
        if leaf.array is not None:
            data = bytes_of(leaf.array)
            entry["at"] = ends[same]
            lots[same].append(ImagePart(ends[same], data))
            ends[same] = -(-(ends[same] + data.size) // ALIGNED) * ALIGNED
        entries.append(entry)
    start, stop = slice_of(ends[1], ranks, at)
    sources = list(_cut(lots[1], start, stop))
    own = -(-(stop - start) // ALIGNED) * ALIGNED
    sources += [ImagePart(own + source.at, source.data) for source in lots[0] if source.data.size]
    found = {"shape": shape, "leaves": entries, "alike": ends[1], "own": own}
    text = json.dumps(found, separators=(",", ":")).encode()
    return Extent(text, own + ends[0], tuple(sources))


def _cut(sources: Sequence[ImagePart], start: int, stop: int) -> Iterator[ImagePart]:
    """Give the parts of sources between two places, counted from the first."""
    for at, data in sources:
        first, last = max(at, start), min(at + data.size, stop)
        if first < last:
            yield ImagePart(first - start, data[first - at : last - at])


@dataclass(frozen=True)
class Description:
    """The description of a rank that has saved.

    Made by `read`.

    Attributes
    ----------
    shape : object
        The tree.
    leaves : list of dict
        The leaves, each with ``alike``; with ``at`` if it has bytes: its place
        in the bytes that are alike, or behind their slice.
    alike : int
        Bytes that all ranks of the group have alike.
    own : int
        Where the bytes of this rank alone start in its data.
    body : int
        Bytes of its data.
    of_sums : int
        Check sum of the sums of its chunks.
    """

    shape: Any
    leaves: list[dict[str, Any]]
    alike: int
    own: int
    body: int
    of_sums: int

    def check(self, sums: Sequence[Sums]) -> bool:
        """Tell whether these are the sums of the data.  Local."""
        return crc32c(b"".join(part.tobytes() for part in sums)) == self.of_sums


def head_bytes(front: Bytes) -> int:
    """Give how many bytes a description takes, by its first 64.

    Local.

    Raises
    ------
    CheckpointError
        If they are none of it.
    """
    magic, version, length, *_ = _PROLOGUE.unpack(front[: _PROLOGUE.size].tobytes())
    if magic != _MAGIC or version > FORMAT:
        problem = f"an extent that starts with {magic!r}, format {version}"
        raise CheckpointError("restore", problem, "use the closeranks that wrote it")
    return FRONT + int(length)


def read(head: Bytes) -> Description:
    """Read a description.

    Local.

    Parameters
    ----------
    head : ndarray of uint8
        From the start of the extent, at least as much as `head_bytes` says.

    Returns
    -------
    Description
        Checked.

    Raises
    ------
    CheckpointError
        If it is none, or damaged.
    """
    length = head_bytes(head) - FRONT
    *_, body, of_text, of_sums = _PROLOGUE.unpack(head[: _PROLOGUE.size].tobytes())
    text = head[FRONT : FRONT + length].tobytes()
    if len(text) != length or crc32c(text) != of_text:
        raise CheckpointError("restore", "a description that is damaged", "restore an older step")
    return parse(text, body, of_sums)


def parse(text: bytes, body: int, of_sums: int = 0) -> Description:
    """Read the text of a description.

    Local.

    Parameters
    ----------
    text : bytes
        As `Extent` has it.
    body : int
        Bytes of the data.
    of_sums : int
        Check sum of the sums of its chunks, where there are any.

    Returns
    -------
    Description
        Parsed, and not checked.

    Raises
    ------
    CheckpointError
        If it is none.
    """
    try:
        found = json.loads(text)
        return Description(
            found["shape"], found["leaves"], int(found["alike"]), int(found["own"]), body, of_sums
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError("restore", f"no description of a state ({error})") from error
