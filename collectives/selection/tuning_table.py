"""Tables of algorithms: rules of a user, or measurements of `closeranks tune`.

``{"allreduce": "ring"}`` takes one algorithm for all sizes.  A list of
``{"up_to_bytes": 65536, "algorithm": "native"}``, the last without a limit,
takes one by the bytes of the vector or of one rank's block.  An algorithm that
cannot serve a call is passed over.

A table of `closeranks tune` begins with ``"format"`` and says where it was
made; `Tuned.within` gives the part of it that holds for a job.  Nothing here
communicates with other ranks.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.builders.patterns.segments import ports_of
from closeranks.collectives.plans.port_tree import hierarchy
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.collectives.selection.rules import Rules, read_rules
from closeranks.comms import argument
from closeranks.comms.topology.level_table import MAX_LEVELS, MAX_RANKS
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.comms.topology.topology_json import Members, parse_json, read_link, write_link
from closeranks.errors import UsageError

if TYPE_CHECKING:
    pass


FORMAT: Final = "closeranks tuning"
VERSION: Final = 1
_FILE = "tuning file"
#: No number of seconds, or of seconds a byte, in a table is larger.
_MOST_S = 1e6


class Origin(NamedTuple):
    """Where a table was made.

    Attributes
    ----------
    library : str
        The MPI library and its version, as it says itself.
    processor : str
        Name of rank 0's processor.
    shape : str
        `shape` of the topology.
    ranks, nodes : int
        How many there were, for people.
    """

    library: str
    processor: str
    shape: str
    ranks: int = 1
    nodes: int = 1

    def objection(self, here: Origin) -> str | None:
        """Say why a table is of no use here, or None.

        Parameters
        ----------
        here : Origin
            Where it would be used.

        Returns
        -------
        str or None
            The shape may differ, library and processor may not.
        """
        if self.library != here.library:
            return f"it was made with {self.library}, this is {here.library}"
        if self.processor != here.processor:
            return f"it was made on {self.processor}, this is {here.processor}"
        return None


class Crossing(NamedTuple):
    """The cost of crossing one level.

    Attributes
    ----------
    link : Link
        Measured on stages.
    together : int
        How many ranks shared the link while it was measured: the ranks of a
        node for its memory, the ports of a group for what leaves it.
    """

    link: Link
    together: int


@dataclass(frozen=True)
class Tuned:
    """Numbers of one machine.

    Attributes
    ----------
    origin : Origin
        Where they were measured.
    levels : mapping of str to Crossing
        By level.
    speed : Speed
        Costs beside the wire.
    native : NativeModel or None
        The library's times on these very ranks.
    winners : Rules
        The fastest algorithms on these very ranks, where they were asked for.
    """

    origin: Origin
    levels: Mapping[str, Crossing]
    speed: Speed = field(default_factory=Speed)
    native: NativeModel | None = None
    winners: Rules = field(default_factory=Rules)

    def within(self, topology: Topology) -> Tuned:
        """Give the part of it that holds for a job.

        Parameters
        ----------
        topology : Topology
            Of the job.

        Returns
        -------
        Tuned
            With the levels that as many ranks share as when they were measured,
            however many groups they have; with winners and the library's times
            only where the ranks sit exactly alike.
        """
        shared = together(topology)
        levels = {
            name: level for name, level in self.levels.items() if shared.get(name) == level.together
        }
        if self.origin.shape == shape(topology):
            return replace(self, levels=levels)
        return Tuned(self.origin, levels, self.speed)

    def remarks(self, topology: Topology) -> list[str]:
        """Name the part of it that does not hold for a job.

        Parameters
        ----------
        topology : Topology
            Of the job.

        Returns
        -------
        list of str
            Empty where all of it does.
        """
        remarks = []
        for name, number in together(topology).items():
            if name not in self.levels:
                remarks.append(f"level {name!r} is not in it")
            elif self.levels[name].together != number:
                there = self.levels[name].together
                remarks.append(f"level {name!r} is shared by {number} ranks here, by {there} there")
        if self.winners.ladders and self.origin.shape != shape(topology):
            where = f"{self.origin.ranks} ranks on {self.origin.nodes} nodes"
            remarks.append(f"its algorithms are those of {where}, placed otherwise")
        return remarks

    def table(self) -> dict[str, Any]:
        """Write it as `read_tuned` reads it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "origin": self.origin._asdict(),
            "speed": asdict(self.speed),
            "native": None if self.native is None else asdict(self.native),
            "levels": [
                {"name": name, "together": level.together, "link": write_link(level.link)}
                for name, level in self.levels.items()
            ],
            "algorithms": self.winners.table(),
        }


def shape(topology: Topology) -> str:
    """Name the grouping of the ranks, in 16 characters.

    Parameters
    ----------
    topology : Topology
        Any.

    Returns
    -------
    str
        Equal where levels and groups are equal, for any links.
    """
    said = " ".join(topology.levels).encode() + topology.groups.astype("<i4").tobytes()
    return blake2b(said, digest_size=8).hexdigest()


def together(topology: Topology) -> dict[str, int]:
    """Count the ranks that share the link of each level's messages.

    Parameters
    ----------
    topology : Topology
        Any.

    Returns
    -------
    dict of str to int
        Level of each tier, innermost first, see `Crossing`.
    """
    tree = hierarchy(topology)
    return {
        tier.level: tier.owners if number == 1 else ports_of(tree, number)
        for number, tier in enumerate(tree.tiers, 1)
    }


def read_tuned(table: object) -> Tuned:
    """Read a table that `Tuned.table` wrote.

    Local.

    Parameters
    ----------
    table : object
        Of JSON that a stranger may have written.

    Returns
    -------
    Tuned
        The same, checked.

    Raises
    ------
    UsageError
        If anything is unknown, missing, of a wrong type or out of bounds, or the
        version is a newer one.
    """
    body = Members(table, "the table", _FILE)
    body.keys("format", "version", "origin", "speed", "native", "levels", "algorithms")
    if body.text("format", 64) != FORMAT:
        raise UsageError("tuning", f"its format is not {FORMAT!r}", "make it with closeranks tune")
    version = body.integer("version", 1, 1 << 30)
    if version > VERSION:
        problem = f"version {version}, this closeranks reads up to {VERSION}"
        raise UsageError("tuning", problem, "update closeranks, or make a table here")
    levels: dict[str, Crossing] = {}
    for item in body.items("levels", MAX_LEVELS):
        level = Members(item, "a level", _FILE)
        level.keys("name", "together", "link")
        name = level.text("name", 32)
        if name in levels:
            raise UsageError("tuning", f"the level {name!r} stands twice", "keep one")
        link = replace(read_link(level.get("link", dict), _FILE), source="tuned")
        levels[name] = Crossing(link, level.integer("together", 1, MAX_RANKS))
    return Tuned(
        _read_origin(body.get("origin", dict)),
        levels,
        Speed(**_seconds(body.get("speed", dict), "speed", Speed())),
        NativeModel(**_seconds(body.get("native", dict), "native", NativeModel(0.0, 0.0)))
        if body.has("native")
        else None,
        read_rules(body.get("algorithms", dict)),
    )


def _read_origin(item: object) -> Origin:
    origin = Members(item, "the origin", _FILE)
    origin.keys(*Origin._fields)
    library, processor, place = (origin.text(name, 256) for name in Origin._fields[:3])
    ranks, nodes = (origin.integer(name, 1, MAX_RANKS) for name in Origin._fields[3:])
    return Origin(library, processor, place, ranks, nodes)


def _seconds(item: object, what: str, like: Speed | NativeModel) -> dict[str, float]:
    """Read numbers of seconds, all of those that ``like`` has."""
    names = tuple(asdict(like))
    members = Members(item, what, _FILE)
    members.keys(*names)
    found = {name: members.number(name) for name in names}
    for name, value in found.items():
        if value is None or not 0 <= value <= _MOST_S:
            problem = f"{name} of {what} is {value!r:.40}"
            raise UsageError("tuning", problem, f"give seconds in 0..{_MOST_S:g}")
    return {name: float(value or 0.0) for name, value in found.items()}


#: Larger files are refused, and files of more values.
MOST_BYTES, MOST_VALUES = 1 << 20, 1 << 16


def tuning(given: str | Path | Mapping[str, Any] | None) -> Rules | Tuned:
    """Read a table.

    Local.

    Parameters
    ----------
    given : path, mapping or None
        A mapping as the module describes, or a JSON file of one.

    Returns
    -------
    Rules or Tuned
        No rules for None.

    Raises
    ------
    UsageError
        With what is wrong where.
    """
    if given is None:
        return Rules()
    try:
        table = given if isinstance(given, Mapping) else _load(Path(given))
    except TypeError:
        problem = f"tuning is {argument.shown(given)}"
        raise UsageError("tuning", problem, "give a path, a mapping, or none") from None
    return read_tuned(dict(table)) if "format" in table else read_rules(table)


def _load(path: Path) -> Mapping[str, Any]:
    """Read a file that a stranger may have put there."""
    try:
        table = parse_json(_text(path), "tuning", max_bytes=MOST_BYTES, max_values=MOST_VALUES)
    except UsageError as error:
        raise UsageError("tuning", f"{path}: {error.problem}", error.remedy) from None
    except (OSError, ValueError) as error:
        raise UsageError("tuning", f"cannot read {path}: {error}", "pass a JSON table") from error
    if not isinstance(table, dict):
        raise UsageError("tuning", f"{path} holds no mapping", 'begin with {"allreduce": ...}')
    return table


def _text(path: Path) -> str:
    """Read a plain file of bounded size; a pipe or device might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError("tuning", "no plain file", "pass a JSON table")
        found = file.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise UsageError("tuning", f"larger than {MOST_BYTES} bytes", "cut it down")
    return found.decode()
