"""The file of one node, HDF5 that any tool reads: its layout, and its writer.

In a file::

    /                  attributes: closeranks_format, and those of ``about``
    /about             JSON, see `About`
    /complete          1, and a sum of ``about`` and of all sums; 0 until then
    /descriptions/<r>  JSON of rank r: the tree, and its entries
    /sums/<r>          CRC-32C of each 256 KiB: of its description, then of
                       each of its data sets
    /ranks/<r>/...     its data sets, called as the entries of the tree

The layout is pure, and the same for writers and readers: names follow from the
tree, places from the description.  A description from a file is checked
against the limits of a file.

HDF5 makes the file with room for every data set, so each is at a known place.
Bytes go there straight from their memory, without another copy, the GIL or
HDF5's lock.  The mark that the file is complete is written when all else is on
disk, and the file gets its name when the mark is.

For the command line: `write(path, about, contents)` writes a file,
`closeranks.checkpoint.disk.hdf5_reader.Archive(path)` reads one, and
`closeranks.checkpoint.disk.saved_files.find_saves(directory, name)` lists the
saves.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from closeranks.checkpoint.erasure import crc32c as checksum
from closeranks.checkpoint.erasure.crc32c import Sums, crc32c
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.stripe_layout import slice_of
from closeranks.checkpoint.state import rank_image, state_tree
from closeranks.checkpoint.state.rank_image import Description
from closeranks.checkpoint.state.state_tree import is_mapping, read_dtype
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    import h5py


#: What a name in a file cannot have in it, or what would mean something else there.
_AWKWARD: Final = re.compile("[%/\0-\x1f\x7f\ud800-\udfff]|^[.]+$")
#: Axes that HDF5 knows; an array of more lies there in one row.
_AXES: Final = 32
_BYTE: Final = np.dtype(np.uint8)


@dataclass(frozen=True)
class Part:
    """One data set of a rank, or a source of it.

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
        Its attributes: ``kind``; of a shard ``global_shape`` and its
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
        The description of the rank, from a file: all of it is checked.
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
                found += _dataset_parts(name, entry, description, first, last)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _contradiction(f"{type(error).__name__}: {error}") from error
    return sorted(found, key=lambda part: (part.at, part.nbytes))


def _dataset_parts(
    name: str, entry: dict[str, Any], description: Description, first: int, last: int
) -> Iterator[Part]:
    """Give the part of an entry in a rank's slice of the bytes that are alike."""
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
    """Give the leaves of a tree and their names in a file, each unique.

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
    """Give the leaves below some place of a tree."""
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


#: Of a file; a newer one is refused.
FORMAT: Final = 1
#: Bytes that have a check sum of their own.
BLOCK: Final = 256 << 10
#: Bytes that are summed up and written at a time.
_UNIT: Final = 32 * BLOCK
_ALL: Final = np.uint32(0xFFFFFFFF)
#: Bytes of integers that stand for elements that HDF5 has no type for.
_INTEGERS: Final = (1, 2, 4, 8)
_REMEDY: Final = "make room there, or pass another persist="


@dataclass(frozen=True)
class About:
    """The header of a file.

    Attributes
    ----------
    name, run : str
        Of the checkpoints, and of the run.
    epoch, generation, step, world : int
        Of the save.
    node : int
        Number of the file: that of the node among those of the job.
    files : int
        How many files the save has.
    members : tuple of int
        Ranks of the erasure group, ascending: each has a slice of equal
        values.
    ranks : tuple of (int, int, int)
        Ranks of the node, each with the bytes of its description and of its data.
    """

    name: str
    run: str
    epoch: int
    generation: int
    step: int
    world: int
    node: int
    files: int
    members: tuple[int, ...]
    ranks: tuple[tuple[int, int, int], ...]

    @property
    def age(self) -> tuple[int, int]:
        """The order of saves of a run: the later, the larger."""
        return self.epoch, self.generation

    def encode(self) -> bytes:
        """Write it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> About:
        """Read it; CheckpointError if it is none."""
        try:
            found = json.loads(text)
            numbers = {name: found[name] for name in _NUMBERS}
            ranks = tuple((rank, head, body) for rank, head, body in found["ranks"])
            members = tuple(found["members"])
            made = cls(str(found["name"]), str(found["run"]), **numbers, members=members,
                       ranks=ranks)  # fmt: skip
            made._check()
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError("restore", f"no word about a file ({error})") from error
        return made

    def _check(self) -> None:
        """Raise ValueError unless it makes sense."""
        sizes = [number for rank in self.ranks for number in rank]
        numbers = (self.epoch, self.generation, self.world, self.node, self.files)
        for number in (*numbers, *self.members, *sizes):
            if type(number) is not int or not 0 <= number < 1 << 64:
                raise ValueError(f"{str(number)[:40]!r} is no number of it")
        if type(self.step) is not int or abs(self.step) >= 1 << 63:
            raise ValueError(f"step {str(self.step)[:40]!r}")
        ranks = [rank for rank, _, _ in self.ranks]
        if not self.node < self.files or sorted(set(ranks)) != ranks or not ranks:
            raise ValueError(f"ranks {str(ranks)[:80]}, file {self.node} of {self.files}")
        if sorted(set(self.members)) != list(self.members) or not set(ranks) <= set(self.members):
            raise ValueError(f"members {str(self.members)[:80]}")
        if self.members[-1] >= self.world:
            raise ValueError(f"{self.world} ranks, and one is {self.members[-1]}")


_NUMBERS: Final = ("epoch", "generation", "step", "world", "node", "files")


class Contents(NamedTuple):
    """The data of a rank.

    Attributes
    ----------
    text : bytes
        Its description, as `closeranks.checkpoint.state.rank_image.parse` takes
        it.
    read : callable
        ``read(start, stop)`` gives bytes of its data, uint8, in one piece.
    """

    text: bytes
    read: Callable[[int, int], Bytes]


def write(
    path: Path,
    about: About,
    contents: Mapping[int, Contents],
    *,
    check: Callable[[], None] = lambda: None,
    approve: Callable[[], None] = lambda: None,
) -> None:
    """Write a file; it has its name when it is whole, and on disk.

    Local.  A killed process leaves a file with a name that starts with a dot.

    Parameters
    ----------
    path : Path
        In a folder that is there; a file of this name is replaced.
    about : About
        The header of the file.
    contents : mapping of int to Contents
        Of each of its ranks.
    check : callable
        Called every some MiB; raises to give up.
    approve : callable
        Called before the file gets its name; raises if it must not.

    Raises
    ------
    CheckpointError
        If it cannot be written; nothing is left of it then.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            places = _lay_out(temporary, about, contents)
            handle = os.open(temporary, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                _fill(handle, places, about, contents, check)
            finally:
                os.close(handle)
            approve()
            temporary.replace(path)
            sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        problem = f"{path} not written: {error.strerror or error}"
        raise CheckpointError("persist", problem, _REMEDY) from error


def _lay_out(path: Path, about: About, contents: Mapping[int, Contents]) -> dict[str, int]:
    """Make a file with room for all; gives where each data set with bytes is."""
    import h5py

    sets = {
        "complete": (h5py.h5t.STD_U64LE, (2,), {}),
        "about": _text(about.encode()),
    }
    for rank, own in contents.items():
        every = _parts(about, rank, own)
        count = blocks(len(own.text)) + sum(blocks(part.nbytes) for part in every)
        sets[f"descriptions/{rank:06d}"] = _text(own.text)
        sets[f"sums/{rank:06d}"] = h5py.h5t.STD_U32LE, (count,), {}
        for part in every:
            sets[f"ranks/{rank:06d}/{part.name}"] = stored_as(part)
    with closing(h5py.File(path, "x", libver=("v108", "v108"), locking=False)) as file:
        said = asdict(about) | {"closeranks_format": FORMAT, "block": BLOCK}
        _say(
            file, {word: value for word, value in said.items() if word not in ("members", "ranks")}
        )
        return dict(_make(file, sets))


def _make(file: h5py.File, sets: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Make data sets; gives where the bytes of each are."""
    from h5py import Dataset, h5d, h5p, h5s

    with_groups, plain = h5p.create(h5p.LINK_CREATE), h5p.create(h5p.DATASET_CREATE)
    with_groups.set_create_intermediate_group(True)
    plain.set_layout(h5d.CONTIGUOUS)
    plain.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    plain.set_fill_time(h5d.FILL_TIME_NEVER)
    plain.set_obj_track_times(False)
    for name, (kind, shape, said) in sets.items():
        space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
        made = h5d.create(file.id, name.encode(), kind, space, plain, with_groups)
        _say(Dataset(made), said)
        where = made.get_offset()
        if where is not None:
            yield name, where


def _say(what: h5py.HLObject, said: Mapping[str, Any]) -> None:
    """Write attributes: texts of a fixed length, and integers."""
    for word, value in said.items():
        if isinstance(value, str):
            what.attrs[word] = np.bytes_(value.encode() or b"\0")
        else:
            least = np.min(value, initial=0)
            what.attrs[word] = np.array(value, np.int64 if least < 0 else np.uint64)


def _text(text: bytes) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """Give the data set of a text."""
    import h5py

    return h5py.h5t.py_create(np.dtype(("S", max(1, len(text)))), logical=True), (), {}


def stored_as(part: Part) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """Give the data set of a part: where HDF5 has no such type, of integers as long.

    Local.

    Parameters
    ----------
    part : Part
        Whose.

    Returns
    -------
    kind : h5py.h5t.TypeID
        Of its elements.
    shape : tuple of int
        In the file.
    attributes : dict of str to object
        Its attributes.
    """
    import h5py

    dtype, shape = part.dtype, part.shape
    is_plain = dtype.kind != "V" or type(dtype) is np.dtypes.VoidDType
    if is_plain:
        with suppress(TypeError, ValueError):
            kind = h5py.h5t.py_create(dtype, logical=True)
            if kind.get_size() == dtype.itemsize:
                return kind, shape, part.attributes
    said = {**part.attributes, "dtype": str(dtype)}
    if dtype.itemsize in _INTEGERS:
        sign, order = "i" if dtype.kind in "mM" else "u", ">" if dtype.byteorder == ">" else "<"
        whole = np.dtype(f"{order}{sign}{dtype.itemsize}")
    else:
        whole, said["shape"] = np.dtype(np.uint8), part.attributes.get("shape", list(shape))
        shape = (part.nbytes,)
    return h5py.h5t.py_create(whole, logical=True), shape, said


def _fill(
    handle: int,
    places: Mapping[str, int],
    about: About,
    contents: Mapping[int, Contents],
    check: Callable[[], None],
) -> None:
    """Write the contents of the data sets, then the mark of completeness."""
    total = crc32c(about.encode())
    _write(handle, places["about"], np.frombuffer(about.encode(), np.uint8))
    for rank, own in contents.items():
        text = np.frombuffer(own.text, np.uint8)
        _write(handle, places[f"descriptions/{rank:06d}"], text)
        kept = [sums_of(text)]
        for part in _parts(about, rank, own):
            for start in range(0, part.nbytes, _UNIT):
                check()
                at = part.at + start
                data = own.read(at, min(at + _UNIT, part.at + part.nbytes))
                kept.append(sums_of(data))
                _write(handle, places[f"ranks/{rank:06d}/{part.name}"] + start, data)
        sums = np.concatenate(kept).view(np.uint8)
        total = crc32c(sums, total)
        _write(handle, places[f"sums/{rank:06d}"], sums)
    os.fsync(handle)
    _write(handle, places["complete"], complete(total))
    os.fsync(handle)


def complete(total: int) -> Bytes:
    """Give the mark of a file that is complete.

    Local.

    Parameters
    ----------
    total : int
        CRC-32C of its header and of the sums of its ranks.
    """
    return np.array([1, total], "<u8").view(np.uint8)


def sums_of(data: Bytes) -> Sums:
    """Give the CRC-32C of each block, from the first byte on.  Local."""
    if not data.size:
        return np.empty(0, "<u4")
    seeds = np.full(blocks(data.size), _ALL)
    return (checksum.sums(data, BLOCK, seeds) ^ _ALL).astype("<u4")


def blocks(nbytes: int) -> int:
    """Give how many check sums some bytes have.  Local."""
    return -(-nbytes // BLOCK)


def _parts(about: About, rank: int, own: Contents) -> list[Part]:
    """Give the data sets of a rank."""
    body = next(body for other, _, body in about.ranks if other == rank)
    return parts(rank_image.parse(own.text, body), len(about.members), about.members.index(rank))


def _write(handle: int, at: int, data: Bytes) -> None:
    """Write all of some bytes to a place."""
    left = data.data
    while left:
        done = os.pwrite(handle, left, at)
        left, at = left[done:], at + done


def sync(folder: Path) -> None:
    """Have the names in a folder on disk.  Local; OSError if that is not possible."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
