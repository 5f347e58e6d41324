"""Handing a restored save out: to the ranks that saved it, or to others.

If as many ranks restore as have saved, each gets back its own state.  For any
other number, or another layout, the caller passes a tree of the shape that it
wants.  Shards are put together from the old shards that meet them.  Values
that were equal on all ranks are equal again.  Values of each rank go through a
function of the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.stripe_layout import slice_of
from closeranks.checkpoint.restore.recovery_search import SaveSource, Wanted
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.device_staging import (
    Anywhere,
    assign,
    bytes_of,
    is_writable,
    memory_of,
)
from closeranks.checkpoint.state.rank_image import Description
from closeranks.checkpoint.state.shards import PerRank, Shard
from closeranks.checkpoint.state.state_tree import Array, read_dtype
from closeranks.errors import CheckpointError

if TYPE_CHECKING:
    from closeranks.checkpoint.control.control_channel import ControlChannel


class IndexBox(NamedTuple):
    """Part of an array: where it starts, and its shape."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Intersection(NamedTuple):
    """The part of a new shard that an old shard has.

    Attributes
    ----------
    old : int
        The old rank.
    theirs : IndexBox
        Its shard.
    overlap : IndexBox
        The part that both have.
    """

    old: int
    theirs: IndexBox
    overlap: IndexBox


def intersections(box: IndexBox, olds: Iterable[tuple[int, IndexBox]]) -> list[Intersection]:
    """Find the old shards that a new shard is put together from.

    Local and pure.  For instance, an array of 12 rows that 3 ranks have saved and
    2 ranks want::

        row   saved by       wanted by
         0    +--------+     +--------+
              | old 0  |     |        |    new 0 = rows 0 to 4 of old 0
         4    +--------+     | new 0  |          + rows 4 to 6 of old 1
              | old 1  |     |        |
         6    |........|     +--------+
              |        |     |        |    new 1 = rows 6 to 8 of old 1
         8    +--------+     | new 1  |          + rows 8 to 12 of old 2
              | old 2  |     |        |
        12    +--------+     +--------+

    Parameters
    ----------
    box : IndexBox
        The new shard, without padding.
    olds : iterable of (int, IndexBox)
        Old ranks and their shards.

    Returns
    -------
    list of Intersection
        Of several old ranks with the same shard the first one counts.
    """
    found: dict[IndexBox, Intersection] = {}
    for old, theirs in olds:
        overlap = _overlap(box, theirs)
        if overlap is not None:
            found.setdefault(theirs, Intersection(old, theirs, overlap))
    return list(found.values())


class Delivery:
    """Hands out one save.

    Parameters
    ----------
    source : SaveSource
        The save, whole.
    channel : ControlChannel
        Between the ranks.
    into : dict, list, tuple or None
        The tree that the caller wants; its arrays are filled.
    """

    def __init__(self, source: SaveSource, channel: ControlChannel, into: Any) -> None:
        self._source, self._channel = source, channel
        self._world = source.world
        self._same = self._world == channel.size
        self._shape, self._wanted = channel.taken("restore", lambda: _taken_apart(into))
        self._heads: dict[int, Description] = {}
        self._wants: list[Wanted] = []
        self._later: list[tuple[int, Any]] = []
        self._old: dict[tuple[int, int], Bytes] = {}

    def run(self) -> Any:
        """Hand it out.

        Collective.

        Returns
        -------
        dict, list or tuple
            The state of this rank.

        Raises
        ------
        CheckpointError
            On all ranks, if ``into`` does not fit on one of them.
        Unreadable
            On all ranks, if the save is damaged; arrays may be filled in part then.
        """
        self._read_heads()
        mine = self._heads[self._channel.rank % self._world]
        leaves = self._channel.taken("restore", lambda: self._plan(mine))
        self._source.fetch(self._wants)

        def finish() -> None:
            for at, make in self._later:  # the caller's functions may raise anything
                leaves[at] = make()

        self._channel.taken("restore", finish)
        return state_tree.unflatten(self._shape if self._shape is not None else mine.shape, leaves)

    def _read_heads(self) -> None:
        """Read the descriptions of this rank's, or of all, old ranks."""
        me, size = self._channel.rank, self._channel.size
        every = not self._same or any(isinstance(one, PerRank | Shard) for one in self._wanted)
        every = int(self._channel.least([not every])[0]) != 1
        own = range(me, self._world, size) if every or me < self._world else [me % self._world]
        self._heads = self._source.heads(own)
        if every:
            said = self._channel.everything(
                [[rank, *_told(description)] for rank, description in self._heads.items()]
            )
            self._heads = {rank: Description(*rest) for lot in said for rank, *rest in lot}

    def _plan(self, mine: Description) -> list[Any]:
        """Decide which bytes are fetched for each entry."""
        paths = list(state_tree.paths(mine.shape))
        if self._shape is None:
            state_tree.check_kinds(mine.shape)
        if self._shape is not None and list(state_tree.paths(self._shape)) != paths:
            differing = set(paths) ^ set(state_tree.paths(self._shape))
            told = ", ".join(sorted(differing)[:8]) or "another order"
            problem = f"into has other entries: {told}"
            raise CheckpointError("restore", problem, "pass a tree as it was saved")
        wanted = self._wanted or [None] * len(paths)
        leaves: list[Any] = [None] * len(paths)
        for at, (path, entry, into) in enumerate(zip(paths, mine.leaves, wanted, strict=True)):
            if isinstance(into, PerRank):
                self._per_rank(at, into)
            elif entry["kind"] == "shard" or isinstance(into, Shard):
                leaves[at] = self._shard(at, path, entry, into)
            elif entry["alike"] or self._same:
                leaves[at] = self._whole(at, path, entry, into)
            else:
                problem = f"{path} is of each of {self._world} ranks, and now there are"
                raise CheckpointError(
                    "restore", f"{problem} {self._channel.size}",
                    f"pass into with PerRank(function(old_values, rank)) at {path}",
                )  # fmt: skip
        return leaves

    def _whole(self, at: int, path: str, entry: dict[str, Any], into: Any) -> Any:
        """Get an entry as it was."""
        if "at" not in entry:
            return state_tree.value(entry, None)
        old = None if entry["alike"] else self._channel.rank
        wanted = state_tree.array_of(into, "restore")
        if wanted is not None:
            return self._filled(at, path, entry, old, into, wanted)
        data = np.empty(state_tree.nbytes(entry), np.uint8)
        self._want(entry, old, 0, data)
        self._later.append((at, lambda: state_tree.value(entry, data)))
        return None

    def _filled(
        self, at: int, path: str, entry: dict[str, Any], old: int | None, into: Any, array: Array
    ) -> Any:
        """Get an array into the caller's memory."""
        _check_like(path, entry, array)
        target = memory_of(array)
        if target is not None:
            self._want(entry, old, 0, target)
            return into
        data = np.empty(array.nbytes, np.uint8)
        self._want(entry, old, 0, data)

        def finish() -> Any:
            assign(array, (), state_tree.value(entry, data))
            return into

        self._later.append((at, finish))
        return None

    def _per_rank(self, at: int, into: PerRank) -> None:
        """Get the values of all old ranks, and let the caller make one of them."""
        values: list[Any] = [None] * self._world
        if not callable(into.value):
            raise CheckpointError("restore", f"PerRank({into.value!r}) in into is no function",
                                  "pass PerRank(function(old_values, rank))")  # fmt: skip
        kept: list[tuple[dict[str, Any], Bytes | None]] = []
        for old in range(self._world):
            entry = self._heads[old].leaves[at]
            data = np.empty(state_tree.nbytes(entry), np.uint8) if "at" in entry else None
            if data is not None:
                self._want(entry, None if entry["alike"] else old, 0, data)
            kept.append((entry, data))

        def finish() -> Any:
            for old, (entry, data) in enumerate(kept):
                values[old] = state_tree.value(entry, data)
            return into.value(values, self._channel.rank)

        self._later.append((at, finish))

    def _shard(self, at: int, path: str, entry: dict[str, Any], into: Any) -> Any:
        """Get a part of an array that the ranks have together."""
        if into is None:
            if not self._same or entry["kind"] != "shard":
                raise CheckpointError(
                    "restore", f"{path} is a part of a whole on each of {self._world} ranks",
                    f"pass into with the Shard of this rank at {path}",
                )  # fmt: skip
            array = np.empty(entry["shape"], read_dtype(entry["dtype"]))
            self._want(entry, self._channel.rank, 0, array.reshape(-1).view(np.uint8))
            array = state_tree.dressed(entry, array)
            return Shard(array, entry["global_shape"], entry["offset"], entry.get("padded", False))
        if not isinstance(into, Shard):
            raise CheckpointError("restore", f"{path} was saved as a Shard",
                                  "pass into with a Shard there")  # fmt: skip
        self._assemble(at, path, into)
        return into

    def _assemble(self, at: int, path: str, into: Shard) -> None:
        """Put a shard together from the old ones that meet it: check first, then copy."""
        array = state_tree.array_of(into.array, "restore")
        if array is None or not is_writable(array):
            raise CheckpointError("restore", f"{path} is a Shard of what cannot be written",
                                  "pass a writable array")  # fmt: skip
        olds = [(old, self._old_box(at, path, old, into, array)) for old in sorted(self._heads)]
        box = _inside(IndexBox(into.offset, array.shape), into.global_shape)
        met = intersections(box, olds)
        if not _is_covered(box, [one.overlap for one in met]):
            problem = f"{path}: nobody has saved all of {box.shape} from {box.offset}"
            raise CheckpointError("restore", problem, "ask for what was saved")
        self._copy(at, into, array, box, met)

    def _old_box(self, at: int, path: str, old: int, into: Shard, array: Array) -> IndexBox:
        """Give an old rank's part of an array; refuse an array that is not as wanted."""
        entry = self._heads[old].leaves[at]
        is_shard = entry["kind"] == "shard"
        if not is_shard and not entry["alike"]:
            raise CheckpointError("restore", f"{path} is of each rank, and no part of a whole",
                                  "pass into with PerRank(function) there")  # fmt: skip
        whole = tuple(entry["global_shape" if is_shard else "shape"])
        if whole != into.global_shape or read_dtype(entry["dtype"]) != array.dtype:
            found = f"{array.dtype} of {into.global_shape}"
            problem = f"{path} is wanted as {found}, saved as {entry['dtype']} of {whole}"
            raise CheckpointError("restore", problem, "ask for what was saved")
        offset = tuple(entry["offset"]) if is_shard else (0,) * len(entry["shape"])
        return IndexBox(offset, tuple(entry["shape"]))

    def _copy(
        self, at: int, into: Shard, array: Array, box: IndexBox, met: Sequence[Intersection]
    ) -> None:
        """Fetch the rows of intersections, into the shard if columns are cut alike."""
        target = memory_of(array)
        apart: list[tuple[IndexBox, IndexBox, NDArray[Any]]] = []
        for one in met:
            theirs, overlap = one.theirs, one.overlap
            if target is not None and theirs.shape[1:] == overlap.shape[1:] == array.shape[1:]:
                self._rows(at, one, _rows_of(target, array, box, overlap))
            else:
                rows = IndexBox((overlap.offset[0], *theirs.offset[1:]),
                           (overlap.shape[0], *theirs.shape[1:]))  # fmt: skip
                apart.append((overlap, rows, np.empty(rows.shape, array.dtype)))
                self._rows(at, one, bytes_of(apart[-1][2]))

        def finish() -> Shard:
            for overlap, rows, data in apart:
                assign(array, _within(overlap, box), data[_within(overlap, rows)])
            return into

        self._later.append((at, finish))

    def _rows(self, at: int, one: Intersection, target: Anywhere) -> None:
        """Fetch the rows of an old shard that meet a new one."""
        entry, box, overlap = self._heads[one.old].leaves[at], one.theirs, one.overlap
        row_bytes = target.size // overlap.shape[0] if box.shape else 0
        first = overlap.offset[0] - box.offset[0] if box.shape else 0
        self._want(entry, None if entry["alike"] else one.old, first * row_bytes, target)

    def _want(self, entry: dict[str, Any], old: int | None, start: int, target: Anywhere) -> None:
        """Ask for bytes of an entry: an old rank's own, or alike on all ranks."""
        at = entry["at"] + start
        if old is not None:
            self._wants.append(Wanted(old, self._heads[old].own + at, target))
            return
        alike = next(iter(self._heads.values())).alike
        members = self._source.members(self._channel.rank % self._world)
        for number, rank in enumerate(members):
            first, last = slice_of(alike, len(members), number)
            low, high = max(first, at), min(last, at + target.size)
            if low < high:
                part = target[low - at : high - at]
                self._wants.append(Wanted(rank, low - first, part))


def _taken_apart(into: Any) -> tuple[Any, list[Any]]:
    """Take the caller's tree apart: functions are leaves there."""
    if into is None:
        return None, []
    leaves: list[Any] = []

    def shape(part: Any) -> Any:
        kind = state_tree.kind_of(part, "into", "restore")
        if kind is None:
            leaves.append(part)
            return len(leaves) - 1
        if state_tree.is_mapping(kind):
            return {kind: [[key, shape(value)] for key, value in part.items()]}
        return {kind: [shape(value) for value in part]}

    return shape(into), leaves


def _told(head: Description) -> tuple[Any, ...]:
    """Give a description as plain JSON."""
    return head.shape, head.leaves, head.alike, head.own, head.body, head.of_sums


def _check_like(path: str, entry: dict[str, Any], into: Array) -> None:
    """Refuse an array that an entry does not fit into."""
    has = (read_dtype(entry["dtype"]), tuple(entry["shape"])) if "dtype" in entry else ()
    if has != (into.dtype, into.shape) or not is_writable(into):
        problem = f"{path} is {into.dtype} of shape {into.shape} in into, saved as"
        saved = f"{entry.get('dtype', entry['kind'])} of shape {tuple(entry.get('shape', ()))}"
        raise CheckpointError("restore", f"{problem} {saved}", "pass a writable array like it")


def _inside(box: IndexBox, whole: tuple[int, ...]) -> IndexBox:
    """Give the part of a box inside of the whole: the rest is padding."""
    ends = zip(box.offset, box.shape, whole, strict=True)
    return IndexBox(box.offset, tuple(max(0, min(n, end - start)) for start, n, end in ends))


def _overlap(one: IndexBox, other: IndexBox) -> IndexBox | None:
    """Give the intersection of two boxes, None if it is empty."""
    offset = tuple(map(max, one.offset, other.offset))
    ends = [min(a + m, b + n) for a, m, b, n in
            zip(one.offset, one.shape, other.offset, other.shape, strict=True)]  # fmt: skip
    shape = tuple(end - start for start, end in zip(offset, ends, strict=True))
    return IndexBox(offset, shape) if all(length > 0 for length in shape) else None


def _rows_of(target: Anywhere, array: Array, box: IndexBox, part: IndexBox) -> Anywhere:
    """Give the bytes of an array where whole rows of it lie."""
    if not box.shape:
        return target
    row_bytes = array.nbytes // array.shape[0]
    first = (part.offset[0] - box.offset[0]) * row_bytes
    return target[first : first + part.shape[0] * row_bytes]


def _within(part: IndexBox, whole: IndexBox) -> tuple[slice, ...]:
    """Give where one box lies in another."""
    return tuple(
        slice(start - origin, start - origin + length)
        for start, origin, length in zip(part.offset, whole.offset, part.shape, strict=True)
    )


def _is_covered(box: IndexBox, parts: Sequence[IndexBox]) -> bool:
    """Tell whether parts of a box fill it."""
    if 0 in box.shape:
        return True
    if all(_overlap(one, other) is None for one, other in combinations(parts, 2)):
        return sum(prod(part.shape) for part in parts) == prod(box.shape)
    covered = np.zeros(box.shape, bool)
    for part in parts:
        covered[_within(part, box)] = True
    return bool(covered.all())
