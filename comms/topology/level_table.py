"""The table under a topology: group numbers of all ranks at each level."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.errors import TopologyError

MAX_RANKS = 1 << 20
MAX_LEVELS = 16
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


@dataclass(frozen=True, eq=False, repr=False)
class Grouping:
    """For each rank its group number at every level.

    Parameters
    ----------
    levels : tuple of str
        Level names, outermost first; the last is "rank".
    groups : ndarray, shape (len(levels), size), dtype int32
        Group numbers, global per level, 0..n-1 in order of first rank; the
        last row counts the ranks.

    Raises
    ------
    TopologyError
        If the rows do not make one hierarchy.
    """

    levels: tuple[str, ...]
    groups: npt.NDArray[np.int32]
    _lazy: dict[Any, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Check everything once, then make it read-only."""
        levels = named(self.levels)
        _check_levels(levels)
        groups = _checked_table(self.groups, levels)
        _check_nesting(groups, levels)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "groups", groups)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self.groups.shape[1])

    def position(self, level: str) -> int:
        """Return the index of a level, 0 for the outermost.

        Parameters
        ----------
        level : str
            A name in `levels`.

        Returns
        -------
        int
            Its row in `groups`.

        Raises
        ------
        TopologyError
            If there is no such level.
        """
        if not isinstance(level, str) or level not in self.levels:
            has = ", ".join(self.levels)
            problem = f"no level {argument.shown(level)}"
            raise TopologyError("topology", problem, f"choose one of {has}")
        return self.levels.index(level)

    def count(self, level: str) -> int:
        """Return how many groups a level has.

        Parameters
        ----------
        level : str
            A name in `levels`.

        Returns
        -------
        int
            Number of groups, at least 1.
        """
        return int(self.groups[self.position(level)].max()) + 1

    def sizes(self, level: str) -> npt.NDArray[np.int64]:
        """Return how many ranks each group of a level has.

        Parameters
        ----------
        level : str
            A name in `levels`.

        Returns
        -------
        ndarray, shape (count(level),), dtype int64
            Ranks per group.
        """
        return np.diff(self._index(level)[1])

    def members(self, level: str, group: int) -> npt.NDArray[np.int32]:
        """Return the ranks of a group.

        Parameters
        ----------
        level : str
            A name in `levels`.
        group : int
            Its number at that level.

        Returns
        -------
        ndarray, shape (ranks of the group,), dtype int32
            Ascending, read-only.

        Raises
        ------
        TopologyError
            If there is no such level or group.
        """
        ranks, starts = self._index(level)
        number = argument.whole("members", f"group of level {level}", group,
                                below=len(starts) - 1, error=TopologyError)  # fmt: skip
        return ranks[starts[number] : starts[number + 1]]

    def _index(self, level: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Ranks sorted by group and where each group starts, made once."""
        if not isinstance(level, str) or level not in self._lazy:
            row = self.groups[self.position(level)]
            ranks = np.argsort(row, kind="stable").astype(np.int32)
            ranks.setflags(write=False)
            starts = np.concatenate(([0], np.cumsum(np.bincount(row))))
            self._lazy[level] = (ranks, starts)
        index: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] = self._lazy[level]
        return index

    def level_index(self, a: int, b: int) -> int:
        """Return the outermost level at which two ranks differ.

        Parameters
        ----------
        a, b : int
            Ranks.

        Returns
        -------
        int
            Index into `levels`; ``len(levels)`` if ``a == b``.
        """
        for rank in (a, b):
            argument.whole("topology", "rank", rank, below=self.size, error=TopologyError)
        left, right = self.groups[:, a].tolist(), self.groups[:, b].tolist()
        pairs = enumerate(zip(left, right, strict=True))
        return next((i for i, (x, y) in pairs if x != y), len(left))

    def level_indices(self, a: npt.ArrayLike, b: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return `level_index` of many pairs at once.

        Parameters
        ----------
        a, b : array_like of int
            Ranks; shapes broadcast against each other.

        Returns
        -------
        ndarray of the broadcast shape, dtype int64
            For each pair the index of the outermost level that differs.
        """
        try:
            left, right = np.broadcast_arrays(*(self._ranks("topology", one) for one in (a, b)))
        except ValueError as wrong:
            remedy = "give as many ranks on both sides"
            raise TopologyError("topology", str(wrong), remedy) from None
        same = np.zeros(left.shape, dtype=np.int64)
        for row in self.groups:
            same += row[left] == row[right]
        return same

    def distance(self, a: int, b: int) -> int:
        """Return how far apart two ranks are.

        Parameters
        ----------
        a, b : int
            Ranks.

        Returns
        -------
        int
            0 for the same rank, 1 inside one innermost group, up to
            ``len(levels)`` across the outermost level.
        """
        return len(self.levels) - self.level_index(a, b)

    def _ranks(self, where: str, given: Any) -> npt.NDArray[np.int64]:
        """Read ranks; refuse other values."""
        bounds = f"give ranks in 0..{self.size - 1}"
        try:
            found = np.asarray(given if hasattr(given, "__array__") else _listed(given))
        except (TypeError, ValueError):
            raise TopologyError(where, f"ranks are {argument.shown(given)}", bounds) from None
        if found.size and found.dtype.kind not in "iu":
            raise TopologyError(where, f"ranks are {argument.shown(given)}", bounds)
        for rank in (int(found.min()), int(found.max())) if found.size else ():
            if not 0 <= rank < self.size:
                raise TopologyError(where, f"rank {rank} is out of range", bounds)
        return found.astype(np.int64)


def _listed(given: Any) -> Any:
    """Let NumPy read sets, ranges and iterators too."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def named(levels: Iterable[str]) -> tuple[str, ...]:
    """Read names of levels, one by one; refuse an object without any.

    Parameters
    ----------
    levels : iterable of str
        The names.

    Returns
    -------
    tuple of str
        As given.

    Raises
    ------
    TopologyError
        If there are none to read.
    """
    names: object = levels
    if not isinstance(names, Iterable) or isinstance(names, str):
        remedy = "give names, outermost first, ending with 'rank'"
        raise TopologyError("topology", f"levels are {argument.shown(names)}", remedy)
    return tuple(names)


def table(groups: Any) -> npt.NDArray[Any]:
    """Read a table of group numbers; refuse rows of different lengths.

    Parameters
    ----------
    groups : array_like
        A row for each level.

    Returns
    -------
    ndarray
        As NumPy reads it.

    Raises
    ------
    TopologyError
        If it is no table.
    """
    try:
        return np.asarray(groups)
    except ValueError as wrong:
        remedy = "give a row for each level, a number for each rank"
        raise TopologyError("topology", f"groups are no table: {wrong}", remedy) from None


def first_ranks(row: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the first rank of each group of one level.

    Parameters
    ----------
    row : ndarray, shape (size,), dtype int32
        Group numbers in order of first rank.

    Returns
    -------
    ndarray, shape (groups,), dtype int64
        Ascending.
    """
    return np.flatnonzero(np.diff(np.maximum.accumulate(row), prepend=-1) > 0)


def renumber(labels: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Renumber the groups of one level in order of their first rank.

    Parameters
    ----------
    labels : ndarray, shape (size,), any sortable dtype
        Equal labels are one group.

    Returns
    -------
    ndarray, shape (size,), dtype int32
        0..n-1.
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    number = np.empty(first.size, dtype=np.int32)
    number[np.argsort(first)] = np.arange(first.size, dtype=np.int32)
    return number[inverse.reshape(-1)]


def _check_levels(levels: tuple[str, ...]) -> None:
    way_out = "give 1 to 16 different names, outermost first, ending with 'rank'"
    for name in levels:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problem = f"{str(name)[:40]!r} is no level name"
            raise TopologyError("topology", problem, "use a letter, then letters, digits, _ or -")
    if not 1 <= len(levels) <= MAX_LEVELS or len(set(levels)) < len(levels):
        raise TopologyError("topology", f"levels are {levels[: MAX_LEVELS + 1]}", way_out)
    if levels[-1] != "rank":
        raise TopologyError("topology", f"the innermost level is {levels[-1]!r}", way_out)


def _checked_table(given: npt.ArrayLike, levels: tuple[str, ...]) -> npt.NDArray[np.int32]:
    """Return a private, read-only int32 table of the right shape and range."""
    array = table(given)
    if array.ndim != 2 or array.shape[0] != len(levels) or array.dtype.kind not in "iu":
        problem = f"groups have shape {array.shape} and dtype {array.dtype}"
        raise TopologyError("topology", problem, f"give integers of shape ({len(levels)}, size)")
    size = array.shape[1]
    if not 1 <= size <= MAX_RANKS:
        raise TopologyError("topology", f"{size} ranks", f"give 1 to {MAX_RANKS} ranks")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= size:
        problem = f"group numbers span {low}..{high} for {size} ranks"
        raise TopologyError("topology", problem, f"stay in 0..{size - 1} or use from_groups")
    groups = np.array(array, dtype=np.int32, order="C")
    groups.setflags(write=False)
    return groups


def _check_nesting(groups: npt.NDArray[np.int32], levels: tuple[str, ...]) -> None:
    """Refuse numbers out of order and groups that lie in two parents."""
    for i, row in enumerate(groups):
        steps = np.diff(np.maximum.accumulate(row), prepend=-1)
        if row[0] != 0 or steps.max() > 1:
            problem = f"{levels[i]} groups are not numbered in order of their first rank"
            raise TopologyError("topology", problem, "build it with Topology.from_groups")
        if i == 0:
            continue
        parent = groups[i - 1]
        expected = parent[first_ranks(row)][row]
        wrong = np.flatnonzero(expected != parent)
        if wrong.size:
            rank = int(wrong[0])
            problem = (
                f"{levels[i]} group {row[rank]} lies in {levels[i - 1]} groups "
                f"{expected[rank]} and {parent[rank]} (rank {rank})"
            )
            raise TopologyError("topology", problem, "put each group inside one parent group")
    if not np.array_equal(groups[-1], np.arange(groups.shape[1])):
        problem = "two ranks share a group of the level 'rank'"
        raise TopologyError("topology", problem, "count the ranks in the last row")


def child_groups(grouping: Grouping, level: str) -> list[list[int]]:
    """Return the groups of a level by their parent group.

    Parameters
    ----------
    grouping : Grouping
        A topology.
    level : str
        One of its levels.

    Returns
    -------
    list of list of int
        For each group of the level outside it (the world at the outermost)
        the group numbers inside, ascending.
    """
    i = grouping.position(level)
    firsts = first_ranks(grouping.groups[i])
    parents = grouping.groups[i - 1, firsts] if i else np.zeros(len(firsts), dtype=np.int32)
    families: list[list[int]] = [[] for _ in range(int(parents.max()) + 1)]
    for group, parent in enumerate(parents.tolist()):
        families[parent].append(group)
    return families
