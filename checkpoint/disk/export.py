"""A save as one file of whole arrays, for programs that know nothing of ranks.

HDF5, read by any tool::

    /                 attributes: closeranks_state, the format; which save
    /state/...        what all ranks have together or alike, once: arrays that
                      were saved in shards are whole
    /ranks/<r>/...    what rank r has for itself

Entries are called as in the tree, see
`closeranks.checkpoint.disk.hdf5_writer.names`.  Each has attributes: ``kind``,
and ``crc32c`` of its bytes in C order.  Elements that HDF5 does not know are
kept as integers, and ``dtype`` tells.  Elements of other lengths, such as
texts, are kept as bytes, in one row; if they were saved in shards, each has a
last axis of its own.  ``shape`` tells.  If the ranks have not saved all of an
array, its parts stand below their ranks, with ``global_shape`` and ``offset``.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.disk.hdf5_writer import Part, names, parts, stored_as, sync
from closeranks.checkpoint.erasure.crc32c import crc32c
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.stripe_layout import slice_of
from closeranks.checkpoint.restore.recovery_search import SaveSource, Wanted
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.rank_image import Description
from closeranks.checkpoint.state.state_tree import read_dtype
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    import h5py

#: Of the file.
FORMAT: Final = 1
#: Bytes that are read again at a time, to be summed up.
_AT_ONCE: Final = 32 << 20
#: Pieces that the parts of an array cut it into, at most, to tell whether they fill it.
_PIECES: Final = 1 << 24
#: Characters that no text of HDF5 has.
_AWKWARD: Final = re.compile("[\0\ud800-\udfff]")
#: Bytes of what HDF5 says beside an entry, and more.
_BESIDE: Final = 256 << 10
_BYTE: Final = np.dtype(np.uint8)
IndexBox = tuple[tuple[int, ...], tuple[int, ...]]


def export(
    source: SaveSource,
    about: Mapping[str, str | int],
    path: Path,
    done: Callable[[int], None],
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a save into one file; it has its name when it is on disk.

    Local; one entry of one rank is in memory at a time.

    Parameters
    ----------
    source : SaveSource
        The save, whole.
    about : mapping of str to str or int
        Attributes of the file.
    path : Path
        A file of this name is replaced.
    done : callable
        Is told how many bytes were written, entry by entry.
    check : callable
        Called before the file gets its name; raises to end.

    Raises
    ------
    CheckpointError
        If it cannot be read or written; nothing is left of it then.
    """
    import h5py

    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with (
                closing(h5py.File(temporary, "x", locking=False)) as file,
                temporary.open("r+b") as handle,
            ):
                file.attrs["closeranks_state"] = FORMAT
                file.attrs.update(about)
                _Writing(source, file, handle.fileno(), done).run()
                file.flush()
                end = file.id.get_filesize()
            os.truncate(temporary, end)  # room that was not needed
            _on_disk(temporary)
            check()
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        problem = f"{path} not written: {error.strerror or error}"
        raise CheckpointError("convert", problem, "make room there, or take another") from error
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        problem = f"a description that contradicts itself ({type(error).__name__}: {error})"
        raise CheckpointError("convert", problem, "take an older step") from error


class _Writing:
    """Writes the entries of a save into an open file."""

    def __init__(
        self, source: SaveSource, file: h5py.File, handle: int, done: Callable[[int], None]
    ) -> None:
        self._source, self._file, self._handle, self._done = source, file, handle, done
        self._heads = source.heads(range(source.world))

    def run(self) -> None:
        """Write all entries."""
        for rank, head in self._heads.items():  # whatever they say is checked
            members = self._source.members(rank)
            parts(head, len(members), members.index(rank))
        shapes = {repr((head.shape, _kinds(head))) for head in self._heads.values()}
        if len(shapes) > 1:
            raise CheckpointError("convert", "ranks that have saved different trees")
        for at, name in names(self._heads[0].shape):
            entry = self._heads[0].leaves[at]
            if entry["kind"] == "shard" and self._is_covered(at):
                self._assemble(at, name)
            elif entry["alike"]:
                self._one(f"state/{name}", entry, None)
            else:
                for rank, head in self._heads.items():
                    self._one(f"ranks/{rank:06d}/{name}", head.leaves[at], rank)

    def _one(self, name: str, entry: Mapping[str, Any], rank: int | None) -> None:
        """Write an entry of one rank, or of all."""
        if "at" not in entry:
            self._value(name, entry)
            return
        data = self._bytes(entry, rank)
        made = self._made(name, entry, entry["shape"])
        if data.size:
            made[...] = data.view(made.dtype).reshape(made.shape)
        for word in ("global_shape", "offset"):
            if word in entry:
                made.attrs[word] = np.array(entry[word], np.int64)
        made.attrs["crc32c"] = np.uint32(crc32c(data))
        self._done(data.size)

    def _value(self, name: str, entry: Mapping[str, Any]) -> None:
        """Write a number or a short text."""
        import h5py

        value, kind = state_tree.value(dict(entry), None), entry["kind"]
        if value is None:
            value = h5py.Empty("f8")
        elif kind == "text" and _AWKWARD.search(value):
            value = np.frombuffer(value.encode("utf-8", "surrogatepass"), np.uint8)
        elif kind == "data":
            value = np.frombuffer(value, np.uint8)
        elif kind == "int" and not -(1 << 63) <= value < 1 << 63:
            value = str(value)
        self._make_room(0)
        made = self._file.create_dataset(name, data=value)
        made.attrs["kind"] = kind

    def _assemble(self, at: int, name: str) -> None:
        """Write an array that ranks have in parts."""
        first, dtype = self._heads[0].leaves[at], self._type(at, name)
        said = {**first, "dtype": dtype.str} if dtype.kind in "US" else first
        made = self._made(f"state/{name}", said, first["global_shape"], by_element=True)
        for box, rank in self._boxes(at).items():
            entry = self._heads[rank].leaves[at]
            data = self._bytes(entry, rank)
            if data.size and prod(box[1]):
                own = data.view(read_dtype(entry["dtype"])).reshape(entry["shape"])
                inside = own[tuple(map(slice, box[1]))]  # without what is beyond the whole
                array: NDArray[Any] = np.ascontiguousarray(inside, dtype).reshape(-1)
                shape = (*box[1], *made.shape[len(box[1]) :])
                place = tuple(slice(a, a + n) for a, n in zip(*box, strict=True))
                made[place] = array.view(made.dtype).reshape(shape)
            self._done(data.size)
        made.attrs["crc32c"] = np.uint32(_sum_of(made))

    def _type(self, at: int, name: str) -> np.dtype[Any]:
        """Give the type of an array that ranks have in parts: of texts the longest."""
        every = {read_dtype(head.leaves[at]["dtype"]) for head in self._heads.values()}
        if len(every) == 1:
            return every.pop()
        if {dtype.kind for dtype in every} not in ({"U"}, {"S"}):
            problem = f"{name} has parts of {' and '.join(sorted(map(str, every)))}"
            raise CheckpointError("convert", problem, "save all of them with one type")
        return np.result_type(*every)

    def _made(
        self, name: str, entry: Mapping[str, Any], shape: Sequence[int], *, by_element: bool = False
    ) -> h5py.Dataset:
        """Make a data set without contents; bytes of an element on an axis of their own."""
        import h5py

        dtype = read_dtype(entry["dtype"]) if "dtype" in entry else _BYTE
        nbytes = prod(shape) * dtype.itemsize
        part = Part(name, 0, nbytes, dtype, tuple(shape), {"kind": entry["kind"]})
        kind, stored, said = stored_as(part)
        if by_element and nbytes and stored == (nbytes,) != part.shape:
            stored = (*shape, dtype.itemsize)
        self._make_room(nbytes)
        made = self._file.create_dataset(name, stored, h5py.Datatype(kind))
        made.attrs.update(said)
        return made

    def _make_room(self, nbytes: int) -> None:
        """Have room on disk for an entry: HDF5 that finds none crashes at its end."""
        os.posix_fallocate(self._handle, self._file.id.get_filesize(), nbytes + _BESIDE)

    def _boxes(self, at: int) -> dict[IndexBox, int]:
        """Give the parts inside of an array, each once, and a rank that has it."""
        boxes: dict[IndexBox, int] = {}
        for rank, head in self._heads.items():
            entry = head.leaves[at]
            shape = tuple(
                max(0, min(length, whole - start))
                for length, start, whole in zip(
                    entry["shape"], entry["offset"], entry["global_shape"], strict=True
                )
            )
            boxes.setdefault((tuple(entry["offset"]), shape), rank)
        return boxes

    def _is_covered(self, at: int) -> bool:
        """Tell whether ranks have all of an array together."""
        boxes = [box for box in self._boxes(at) if prod(box[1])]
        return is_covered(self._heads[0].leaves[at]["global_shape"], boxes)

    def _bytes(self, entry: Mapping[str, Any], rank: int | None) -> Bytes:
        """Read the bytes of an entry: a rank's own, or alike on all ranks."""
        data = np.empty(state_tree.nbytes(dict(entry)), np.uint8)
        if rank is not None:
            self._source.fetch([Wanted(rank, self._heads[rank].own + entry["at"], data)])
            return data
        members, wants = self._source.members(0), []
        for number, member in enumerate(members):
            first, last = slice_of(self._heads[0].alike, len(members), number)
            low, high = max(first, entry["at"]), min(last, entry["at"] + data.size)
            if low < high:
                part = data[low - entry["at"] : high - entry["at"]]
                wants.append(Wanted(member, low - first, part))
        self._source.fetch(wants)
        return data


def is_covered(whole: Sequence[int], boxes: Sequence[IndexBox]) -> bool:
    """Tell whether boxes fill an array.

    Local and pure: the array is cut at all of their faces, and each piece looked
    at.

    Parameters
    ----------
    whole : sequence of int
        Shape of the array.
    boxes : sequence of (tuple of int, tuple of int)
        Where each starts, and its shape.

    Returns
    -------
    bool
        False also where there are too many pieces to tell.
    """
    if sum(prod(shape) for _, shape in boxes) < prod(whole):
        return False
    edges = []
    for axis, length in enumerate(whole):
        ends = [(start[axis], start[axis] + shape[axis]) for start, shape in boxes]
        edges.append(np.array(sorted({0, length, *(end for pair in ends for end in pair)})))
    if prod(len(own) for own in edges) > _PIECES:
        return False
    met = np.zeros([len(own) - 1 for own in edges], bool)
    for start, shape in boxes:
        pieces = [np.searchsorted(own, [first, first + length])
                  for own, first, length in zip(edges, start, shape, strict=True)]  # fmt: skip
        met[tuple(slice(*pair) for pair in pieces)] = True
    return bool(met.all())


def _kinds(head: Description) -> list[tuple[Any, ...]]:
    """Give the properties of entries that all ranks must have alike."""
    return [(entry["kind"] == "shard", entry["alike"], entry.get("global_shape"))
            for entry in head.leaves]  # fmt: skip


def _sum_of(made: h5py.Dataset) -> int:
    """Sum an array up, as it is in the file."""
    if not made.shape:
        return crc32c(_plain(made[...]))
    row = max(1, prod(made.shape[1:]) * made.dtype.itemsize)
    total, step = 0, max(1, _AT_ONCE // row)
    for start in range(0, made.shape[0], step):
        total = crc32c(_plain(made[start : start + step]), total)
    return total


def _plain(array: Any) -> Bytes:
    """See an array as bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _on_disk(path: Path) -> None:
    """Have the bytes of a file on disk."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
