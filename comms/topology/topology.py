"""The hierarchy a job runs on, as an immutable table.

Each rank has one group number a level; links and devices are kept beside it.
Pure data: nothing here reads the machine or talks to other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from closeranks.comms import argument
from closeranks.comms.topology import topology_json
from closeranks.comms.topology.drawing import layout, render, save
from closeranks.comms.topology.level_table import (
    MAX_RANKS,
    Grouping,
    first_ranks,
    named,
    renumber,
    table,
)
from closeranks.comms.topology.link import Link, default_links
from closeranks.comms.topology.node_description import Devices
from closeranks.errors import TopologyError

__all__ = ["Link", "Topology"]

Exceptions = Mapping[tuple[str, int, int], Link]
_PAIRS: Final = "give (level, lower group, higher group)"
_LINK: Final = "give a Link(latency_s, bytes_per_s)"


@dataclass(frozen=True, eq=False, repr=False)
class Topology(Grouping):
    """The hierarchy of ranks: for each rank its group number at every level.

    All methods are local and pure.  Equal by value, hashable, picklable.

    Parameters
    ----------
    levels : tuple of str
        Level names, outermost first; the last is "rank".
    groups : ndarray, shape (len(levels), size), dtype int32
        Group numbers, global per level, 0..n-1 in order of first rank; the
        last row counts the ranks.  `from_groups` renumbers any labels.
    links : mapping of str to Link, optional
        Link per level; levels left out get `default_links`.
    exceptions : mapping of (str, int, int) to Link, optional
        Link between two groups of a level that differs from the level's, the
        lower group number first; both directions.
    devices : Devices, optional
        GPUs and network cards, as far as known.

    Raises
    ------
    TopologyError
        If the parts do not make one hierarchy.
    """

    links: Mapping[str, Link] = field(default_factory=dict)
    exceptions: Exceptions = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)

    def __post_init__(self) -> None:
        """Check everything once, then make it read-only."""
        super().__post_init__()
        given = _mapping("links", self.links, "give level -> Link")
        links = {**default_links(self.levels), **given}
        for name, link in links.items():
            self.position(name)
            if type(link) is not Link:
                problem = f"the link of {name!r} is {link!r}"
                raise TopologyError("topology", problem, _LINK)
        _mapping("exceptions", self.exceptions, _PAIRS)
        for pair, link in self.exceptions.items():
            self._check_exception(pair, link)
        argument.instance("topology", "devices", self.devices, Devices, "give Devices, or none",
                          error=TopologyError)  # fmt: skip
        nodes = self.count("node") if "node" in self.levels else 1
        self.devices.check(nodes, self.size)
        exceptions = dict(sorted(self.exceptions.items()))
        object.__setattr__(self, "links", MappingProxyType(links))
        object.__setattr__(self, "exceptions", MappingProxyType(exceptions))

    def _check_exception(self, pair: object, link: object) -> None:
        """Refuse an exception that is no link, or of no pair of groups."""
        match pair:
            case (str() as name, int() as a, int() as b) if 0 <= a < b < self.count(name):
                argument.instance("topology", f"the link of {pair}", link, Link, _LINK,
                                  error=TopologyError)  # fmt: skip
            case _:
                problem = f"link exception {argument.shown(pair)} names no pair of groups"
                raise TopologyError("topology", problem, _PAIRS)

    @classmethod
    def from_groups(
        cls,
        levels: Sequence[str],
        groups: npt.ArrayLike | Sequence[Any],
        links: Mapping[str, Link] | None = None,
        *,
        exceptions: Exceptions | None = None,
        devices: Devices | None = None,
    ) -> Topology:
        """Build a topology from any integer labels per level.

        Parameters
        ----------
        levels : sequence of str
            Level names, outermost first; the last is "rank".
        groups : array_like of int, shape (len(levels), size)
            Labels; ranks with the same label of a level are one group.
            Labels of a level are global: two nodes need two labels.
        links : mapping of str to Link, optional
            As in `Topology`; `exceptions` name renumbered groups.
        exceptions : mapping of (str, int, int) to Link, optional
            As in `Topology`.
        devices : Devices, optional
            As in `Topology`; its nodes are renumbered ones.

        Returns
        -------
        Topology
            With groups renumbered in order of their first rank.

        Raises
        ------
        TopologyError
            If the parts do not make one hierarchy.
        """
        rows = table(groups)
        if rows.ndim == 2 and rows.size and rows.dtype.kind in "iu":
            rows = np.stack([renumber(row) for row in rows])
        return cls(named(levels), rows, links or {}, exceptions or {}, devices or Devices())

    @classmethod
    def regular(cls, **children: int) -> Topology:
        """Make up a machine with equal groups.

        Parameters
        ----------
        **children : int
            Level name and number of groups inside each parent group,
            outermost first, ending with ``rank``; the size is the product.

        Returns
        -------
        Topology
            With `default_links`.

        Raises
        ------
        TopologyError
            If a number is not positive, or the machine is too large.

        Examples
        --------
        >>> Topology.regular(site=2, node=4, rank=8).size
        64
        """
        size = 1
        for name, number in children.items():
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
                raise TopologyError("regular", f"{name}={number!r}", "give a number of at least 1")
            size *= int(number)
            if size > MAX_RANKS:
                raise TopologyError("regular", f"more than {MAX_RANKS} ranks", "give fewer")
        ranks = np.arange(size, dtype=np.int32)
        rows, inside = [], size
        for number in children.values():
            inside //= int(number)
            rows.append(ranks // inside)
        return cls(tuple(children), np.array(rows, dtype=np.int32))

    def link(self, a: int, b: int) -> Link:
        """Return the link between two ranks.

        Parameters
        ----------
        a, b : int
            Two different ranks.

        Returns
        -------
        Link
            The exception of their pair of groups at the outermost level that
            separates them, else that level's link.

        Raises
        ------
        TopologyError
            If ``a == b`` or a rank is out of range.
        """
        i = self.level_index(a, b)
        if i == len(self.levels):
            raise TopologyError("link", f"rank {a} needs no link to itself", "give two ranks")
        name = self.levels[i]
        if self.exceptions:
            x, y = sorted((int(self.groups[i, a]), int(self.groups[i, b])))
            if (name, x, y) in self.exceptions:
                return self.exceptions[name, x, y]
        return self.links[name]

    def with_links(
        self, links: Mapping[str, Link], exceptions: Exceptions | None = None
    ) -> Topology:
        """Return the same groups with other links.

        Parameters
        ----------
        links : mapping of str to Link
            Replaces the links of these levels.
        exceptions : mapping of (str, int, int) to Link, optional
            Replaces all exceptions; None keeps them.

        Returns
        -------
        Topology
            A new topology.
        """
        merged = {**self.links, **_mapping("links", links, "give level -> Link")}
        kept = self.exceptions if exceptions is None else exceptions
        return Topology(self.levels, self.groups, merged, kept, self.devices)

    def restrict(self, ranks: Iterable[int]) -> Topology:
        """Keep some ranks, renumbered by their place in ``ranks``.

        Parameters
        ----------
        ranks : iterable of int
            Different ranks; ``restrict(alive)`` is the world of the survivors.

        Returns
        -------
        Topology
            All levels kept, groups renumbered in order of first rank.

        Raises
        ------
        TopologyError
            If no rank is given, one twice, or one is out of range.
        """
        kept = self._ranks("restrict", ranks)
        if kept.ndim != 1:
            raise TopologyError("restrict", f"ranks of shape {kept.shape}", "give them in a row")
        if not kept.size or np.unique(kept).size != kept.size:
            raise TopologyError("restrict", "no rank or one twice", "give different ranks")
        rows = np.stack([renumber(row) for row in self.groups[:, kept]])
        old = {
            name: self.groups[i, kept[first_ranks(rows[i])]].tolist()
            for i, name in enumerate(self.levels)
        }
        nodes = old.get("node", [0])
        return Topology(
            self.levels,
            rows,
            self.links,
            self._exceptions_between(old),
            self.devices.restrict(nodes, kept.tolist()) if self.devices else Devices(),
        )

    def _exceptions_between(self, old: Mapping[str, list[int]]) -> Exceptions:
        """Return the exceptions among kept groups, under their new numbers."""
        new = {name: {group: n for n, group in enumerate(kept)} for name, kept in old.items()}
        exceptions = {}
        for (name, a, b), link in self.exceptions.items():
            if a in new[name] and b in new[name]:
                x, y = sorted((new[name][a], new[name][b]))
                exceptions[name, x, y] = link
        return exceptions

    def to_json(self) -> str:
        """Return the topology as JSON text.

        Returns
        -------
        str
            For `from_json`; a regular machine of 16384 ranks takes about a
            kilobyte.
        """
        return topology_json.write_topology(
            topology_json.TopologyParts(
                self.levels, self.groups, self.links, self.exceptions, self.devices
            )
        )

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """Read a topology from JSON text.

        Parameters
        ----------
        text : str
            Written by `to_json` or by hand; need not be trusted.

        Returns
        -------
        Topology
            Equal to the one written.

        Raises
        ------
        TopologyError
            If it is no topology, too large, or of a newer version.
        """
        remedy = "give what to_json has written"
        argument.instance("topology", "the text", text, str, remedy, error=TopologyError)
        return cls(*topology_json.read_topology(text))

    def draw(self, path: str | Path) -> None:
        """Draw nested boxes of groups, cards and links.

        Parameters
        ----------
        path : str or Path
            Ends with ``.svg``, or with ``.png`` where matplotlib is
            installed.

        Raises
        ------
        TopologyError
            If it ends with anything else.
        Unavailable
            If matplotlib is missing for PNG.
        """
        save(layout(self, self.links, self.devices), path)

    def _value(self) -> tuple[Any, ...]:
        """Everything that makes two topologies equal, hashable."""
        table = self.groups.tobytes()
        links, exceptions = tuple(self.links.items()), tuple(self.exceptions.items())
        return self.levels, table, frozenset(links), frozenset(exceptions), self.devices

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        if not isinstance(other, Topology):
            return NotImplemented
        return self is other or self._value() == other._value()

    def __hash__(self) -> int:
        """Hash by value, computed once."""
        if "hash" not in self._lazy:
            self._lazy["hash"] = hash(self._value())
        return int(self._lazy["hash"])

    def __repr__(self) -> str:
        """Return one line with the number of groups per level."""
        counts = " ".join(f"{name}={self.count(name)}" for name in self.levels)
        return f"<Topology {counts}>"

    def __str__(self) -> str:
        """Return the tree of groups, equal siblings folded."""
        return render(self, self.links, self.exceptions, self.devices)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the parts, not the lazy tables."""
        links, exceptions = dict(self.links), dict(self.exceptions)
        return Topology, (self.levels, self.groups, links, exceptions, self.devices)


def _mapping(name: str, value: Any, remedy: str) -> Mapping[Any, Any]:
    """Give a mapping back; refuse other objects."""
    argument.instance("topology", name, value, Mapping, remedy, error=TopologyError)
    return dict(value)
