"""The JSON form of topologies and node descriptions: versioned, bounded.

`parse_json` and `Members` read text that need not be trusted.  Rows of
integers are run-length text: ``0..3*2 7`` is 0 0 1 1 2 2 3 3 7.
`encode_node` and `decode_node` write and read a node's description as compact
JSON, for the other ranks of a job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.level_table import MAX_LEVELS, MAX_RANKS
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import (
    Device,
    Devices,
    Domain,
    Fact,
    Gpu,
    Nic,
    NodeDescription,
)
from closeranks.errors import TopologyError


def parse_json(text: str, operation: str, *, max_bytes: int, max_values: int) -> object:
    """Parse JSON within bounds.

    Parameters
    ----------
    text : str
        The document.
    operation : str
        The call, for the text of an error.
    max_bytes : int
        Longest text accepted, in characters.
    max_values : int
        Most values accepted, so that a short text of ``[],[],...`` cannot
        become gigabytes of objects.

    Returns
    -------
    object
        dict, list, str, int, float, bool or None.

    Raises
    ------
    TopologyError
        If it is no JSON, too large, too deep, has a key twice, a number that
        is not finite or one of more than 30 digits.
    """
    if not isinstance(text, str):
        raise TopologyError(operation, f"a {type(text).__name__} is no text", "give a str")
    if len(text) > max_bytes:
        raise TopologyError(operation, f"{len(text)} characters", f"give at most {max_bytes}")
    values = text.count(",") + text.count("[") + text.count("{")
    if values > max_values:
        raise TopologyError(operation, f"{values} values", f"give at most {max_values}")

    def refuse(problem: str) -> NoReturn:
        raise TopologyError(operation, problem, "correct the file or write it anew")

    def number(digits: str) -> int:
        return int(digits) if len(digits) <= 30 else refuse(f"a number of {len(digits)} digits")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            refuse(f"the key {twice[:40]!r} stands twice")
        return made

    try:
        return json.loads(
            text,
            parse_int=number,
            parse_constant=lambda name: refuse(f"{name} is no number"),
            object_pairs_hook=unique,
        )
    except json.JSONDecodeError as error:
        raise TopologyError(operation, f"no JSON ({error})", "write it anew") from None
    except RecursionError:
        raise TopologyError(operation, "nested too deep", "write it anew") from None


T = TypeVar("T")


class Members:
    """A JSON object that gives its members with their types checked.

    Parameters
    ----------
    item : object
        Must be a JSON object.
    what : str
        Its name, for the text of an error.
    file : str
        Kind of file that holds it, for the text of an error.

    Raises
    ------
    TopologyError
        If it is no JSON object; the methods raise it for members that are missing,
        of a wrong type or out of bounds.
    """

    def __init__(self, item: object, what: str, file: str) -> None:
        if not isinstance(item, dict):
            raise TopologyError(file, f"{what} is {str(item)[:40]!r}", "give a JSON object")
        self._members: dict[str, Any] = item
        self._what, self._file = what, file

    def keys(self, *known: str) -> None:
        """Refuse unknown members."""
        for key in self._members:
            if key not in known:
                problem = f"{self._what} has the unknown key {key[:40]!r}"
                raise TopologyError(self._file, problem, f"known are {', '.join(known)}")

    def has(self, key: str) -> bool:
        """Say whether a member is there and not null."""
        return self._members.get(key) is not None

    def absent(self, key: str, default: T) -> T | None:
        """Return the default for a missing member, None for a null."""
        return None if key in self._members else default

    def get(self, key: str, kind: type[T]) -> T:
        """Return a member of exactly this type."""
        value = self._members.get(key)
        if type(value) is not kind:
            problem = f"{key} of {self._what} is {str(value)[:40]!r}"
            raise TopologyError(self._file, problem, f"give a JSON {kind.__name__}")
        return value

    def text(self, key: str, longest: int) -> str:
        """Return a bounded string."""
        value = self.get(key, str)
        if len(value) > longest:
            problem = f"{key} of {self._what} has {len(value)} characters"
            raise TopologyError(self._file, problem, f"give at most {longest}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a bounded int."""
        value = self.get(key, int)
        if not low <= value <= high:
            problem = f"{key} of {self._what} is {value}"
            raise TopologyError(self._file, problem, f"stay in {low}..{high}")
        return value

    def number(self, key: str) -> float | None:
        """Return a number or None; its range is checked by its reader."""
        value = self._members.get(key)
        if value is not None and type(value) not in (int, float):
            problem = f"{key} of {self._what} is {str(value)[:40]!r}"
            raise TopologyError(self._file, problem, "give a number or null")
        return value

    def items(self, key: str, most: int) -> list[Any]:
        """Return a bounded list; a missing one is empty."""
        value = self.get(key, list) if self.has(key) else []
        if len(value) > most:
            problem = f"{key} of {self._what} has {len(value)} entries"
            raise TopologyError(self._file, problem, f"give at most {most}")
        return value


_TOKEN = re.compile(r"(-?\d{1,9})(?:\.\.(\d{1,9}))?(?:\*(\d{1,9}))?")


def write_runs(values: npt.ArrayLike) -> str:
    """Write integers as text, folding repeats and counts.

    Parameters
    ----------
    values : array_like of int, shape (n,)
        At least -10**8 and below 10**9.

    Returns
    -------
    str
        Tokens ``a``, ``a*n`` (n times a), ``a..b`` (a, a+1, ... b) and
        ``a..b*n`` (each n times), separated by blanks.
    """
    row = np.asarray(values, dtype=np.int64)
    if not row.size:
        return ""
    starts = np.concatenate(([0], np.flatnonzero(np.diff(row)) + 1))
    counts = np.diff(np.append(starts, row.size))
    runs = row[starts]
    # a run continues its predecessor if it is one larger and as long
    joined = (np.diff(runs) == 1) & (np.diff(counts) == 0) & (runs[:-1] >= 0)
    heads = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    tails = np.append(heads[1:], runs.size) - 1
    ends = zip(runs[heads].tolist(), runs[tails].tolist(), counts[heads].tolist(), strict=True)
    return " ".join(
        f"{first}" + (f"..{last}" if last > first else "") + (f"*{n}" if n > 1 else "")
        for first, last, n in ends
    )


def read_runs(text: str, size: int, what: str, *, fewer: bool = False) -> npt.NDArray[np.int64]:
    """Read text of `write_runs`, never expanding beyond ``size``.

    Parameters
    ----------
    text : str
        Tokens separated by blanks.
    size : int
        How many integers there must be.
    what : str
        Name of the row, for the error.
    fewer : bool, default False
        Whether fewer integers will do.

    Returns
    -------
    ndarray, shape (size,), dtype int64
        The integers.

    Raises
    ------
    TopologyError
        If a token is malformed or the number of integers differs.
    """
    pieces, total = [], 0
    for token in text.split():
        match = _TOKEN.fullmatch(token)
        if not match:
            raise TopologyError("topology file", f"{what} holds {token[:40]!r}", _RUN_FORMS)
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        repeat = int(match[3]) if match[3] else 1
        total += max(last - first + 1, 0) * repeat
        if last < first or repeat < 1 or total > size:
            problem = f"{what}: {token!r} makes {total} of {size} numbers"
            raise TopologyError("topology file", problem, _RUN_FORMS)
        pieces.append((first, last, repeat))
    if total != size and not fewer:
        raise TopologyError("topology file", f"{what} has {total} of {size} numbers", _RUN_FORMS)
    return _expand(pieces)


_RUN_FORMS = "write a, a*n, a..b or a..b*n"


def _expand(pieces: Iterable[tuple[int, int, int]]) -> npt.NDArray[np.int64]:
    table = np.array(list(pieces), dtype=np.int64).reshape(-1, 3)
    lengths = table[:, 1] - table[:, 0] + 1
    starts = np.cumsum(lengths) - lengths
    values = np.arange(lengths.sum()) + np.repeat(table[:, 0] - starts, lengths)
    return np.repeat(values, np.repeat(table[:, 2], lengths))


def ranges(values: Iterable[int], limit: int = 12) -> str:
    """Write integers for people: ``0-7, 12, 16-40:8``.

    Parameters
    ----------
    values : iterable of int
        Ascending.
    limit : int, default 12
        At most so many pieces; the rest is counted.

    Returns
    -------
    str
        ``a-b`` is a to b, ``a-b:s`` is every s-th from a to b.
    """
    numbers = list(values)
    pieces: list[str] = []
    i = 0
    while i < len(numbers):
        step = numbers[i + 1] - numbers[i] if i + 1 < len(numbers) else 1
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] - numbers[j] == step:
            j += 1
        if j - i == 1 and step > 1:
            j = i
        if len(pieces) == limit:
            pieces.append(f"... ({len(numbers)} in all)")
            break
        end = "" if i == j else f"-{numbers[j]}" + ("" if step == 1 else f":{step}")
        pieces.append(f"{numbers[i]}{end}")
        i = j + 1
    return ", ".join(pieces)


_MOST_CPUS = 65536


def encode_node(node: NodeDescription) -> bytes:
    """Write a description without host name, boot id and UUIDs.

    Parameters
    ----------
    node : NodeDescription
        Any.

    Returns
    -------
    bytes
        Equal for equal hardware.
    """
    document = {
        "packages": _domains(node.packages),
        "numa": _domains(node.numa),
        "l3": _domains(node.l3),
        "distances": _fact(node.distances),
        "nics": [
            [n.name, _fact(n.bytes_per_s), _fact(n.numa), _fact(n.pci), _fact(n.usable), n.fabric]
            for n in node.nics
        ],
        "gpus": [
            [g.name, g.model, _fact(g.numa), _fact(g.pci), _fact(g.nvlink)] for g in node.gpus
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_node(data: bytes) -> NodeDescription:
    """Read a description that `encode_node` wrote on another rank of this job.

    Parameters
    ----------
    data : bytes
        From `encode_node`.

    Returns
    -------
    NodeDescription
        Without host name, boot id and UUIDs.
    """
    document = json.loads(data)
    distances = _read(document["distances"])
    return NodeDescription(
        host="",
        packages=_read_domains(document["packages"]),
        numa=_read_domains(document["numa"]),
        l3=_read_domains(document["l3"]),
        distances=Fact(_tuples(distances.value), distances.source),
        nics=tuple(_read_nic(entry) for entry in document["nics"]),
        gpus=tuple(_read_gpu(entry) for entry in document["gpus"]),
    )


def _fact(fact: Fact[Any]) -> list[Any]:
    return [fact.value, fact.source]


def _read(entry: list[Any]) -> Fact[Any]:
    return Fact(entry[0], entry[1])


def _domains(fact: Fact[tuple[Domain, ...]]) -> list[Any]:
    if fact.value is None:
        return [None, fact.source]
    return [[[d.number, write_runs(d.cpus)] for d in fact.value], fact.source]


def _read_domains(entry: list[Any]) -> Fact[tuple[Domain, ...]]:
    if entry[0] is None:
        return Fact(None, entry[1])
    made = (
        Domain(number, tuple(read_runs(cpus, _MOST_CPUS, "cpus", fewer=True).tolist()))
        for number, cpus in entry[0]
    )
    return Fact(tuple(made), entry[1])


def _tuples(value: Any) -> Any:
    """Turn lists of lists into tuples of tuples."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _read_nic(entry: list[Any]) -> Nic:
    name, rate, numa, pci, usable, fabric = entry
    way = Fact(_tuples(pci[0]), pci[1])
    return Nic(name, _read(rate), _read(numa), way, _read(usable), fabric)


def _read_gpu(entry: list[Any]) -> Gpu:
    name, model, numa, pci, nvlink = entry
    way, peers = Fact(_tuples(pci[0]), pci[1]), Fact(_tuples(nvlink[0]), nvlink[1])
    return Gpu(name, model, "", _read(numa), way, peers)


FORMAT = "closeranks topology"
VERSION = 1
MAX_BYTES = 1 << 24
_MAX_VALUES = 1_000_000
_MAX_EXCEPTIONS = 1 << 16
_MAX_TABLES = 4096
_MAX_DEVICES = 1024
_FILE = "topology file"
_WAY_OUT = "see the format in docs/topology.md"


class TopologyParts(NamedTuple):
    """The parts of a topology; see `Topology` for the fields."""

    levels: tuple[str, ...]
    groups: npt.NDArray[np.int32]
    links: Mapping[str, Link]
    exceptions: Mapping[tuple[str, int, int], Link]
    devices: Devices


def write_topology(parts: TopologyParts) -> str:
    """Write the parts of a topology as JSON.

    Parameters
    ----------
    parts : TopologyParts
        Of a valid topology.

    Returns
    -------
    str
        Indented JSON; rows of group numbers are run-length coded.
    """
    levels = [
        {"name": name, "groups": write_runs(row), "link": write_link(parts.links[name])}
        for name, row in zip(parts.levels, parts.groups, strict=True)
    ]
    exceptions = [
        {"level": name, "groups": [a, b], "link": write_link(link)}
        for (name, a, b), link in parts.exceptions.items()
    ]
    devices = {
        "tables": [[_device(device) for device in table] for table in parts.devices.tables],
        "of_node": write_runs(parts.devices.of_node),
        "numa_of_rank": write_runs(parts.devices.numa_of_rank),
    }
    document: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "size": int(parts.groups.shape[1]),
        "levels": levels,
    }
    if exceptions:
        document["exceptions"] = exceptions
    if parts.devices != Devices():
        document["devices"] = devices
    return json.dumps(document, indent=1, allow_nan=False)


def write_link(link: Link) -> dict[str, object]:
    """Write a link as `read_link` reads it."""
    known: dict[str, object] = {
        "latency_s": link.latency_s,
        "bytes_per_s": link.bytes_per_s,
        "rails": link.rails,
        "source": link.source,
    }
    return known if link.segment_s is None else {**known, "segment_s": link.segment_s}


def _device(device: Device) -> dict[str, object]:
    return {
        "kind": device.kind,
        "name": device.name,
        "numa": device.numa,
        "pci": device.pci,
        "bytes_per_s": device.bytes_per_s,
        "near": list(device.near),
        "path": device.path,
    }


def read_topology(text: str) -> TopologyParts:
    """Read JSON that `write_topology` or a person wrote.

    Parameters
    ----------
    text : str
        At most 16 MiB.

    Returns
    -------
    TopologyParts
        Right in form; `Topology` checks that they make one hierarchy.

    Raises
    ------
    TopologyError
        If anything is unknown, missing, of a wrong type or out of bounds.
    """
    document = parse_json(text, _FILE, max_bytes=MAX_BYTES, max_values=_MAX_VALUES)
    _check_version(document)
    body = Members(document, "the document", _FILE)
    body.keys("format", "version", "size", "levels", "exceptions", "devices")
    size = body.integer("size", 1, MAX_RANKS)
    levels, rows, links = [], [], {}
    for item in body.items("levels", MAX_LEVELS):
        level = Members(item, "a level", _FILE)
        level.keys("name", "groups", "link")
        name = level.text("name", 32)
        levels.append(name)
        row = read_runs(level.text("groups", MAX_BYTES), size, f"level {name!r}")
        if row.min() < 0 or row.max() >= size:
            problem = f"level {name!r} has groups {row.min()}..{row.max()} of {size} ranks"
            raise TopologyError(_FILE, problem, "number the groups from 0")
        rows.append(row)
        if level.has("link"):
            links[name] = read_link(level.get("link", dict))
    exceptions: dict[tuple[str, int, int], Link] = {}
    for item in body.items("exceptions", _MAX_EXCEPTIONS):
        pair, link = _read_exception(item)
        if pair in exceptions:
            raise TopologyError(_FILE, f"the exception {pair} stands twice", "keep one")
        exceptions[pair] = link
    devices = _read_devices(body.get("devices", dict), size) if body.has("devices") else Devices()
    if not rows:
        raise TopologyError(_FILE, "no levels", _WAY_OUT)
    return TopologyParts(tuple(levels), np.array(rows, dtype=np.int32), links, exceptions, devices)


def _check_version(document: object) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise TopologyError(_FILE, f"its format is not {FORMAT!r}", "write it with to_json")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise TopologyError(_FILE, f"version is {str(version)[:40]}", f"versions are 1..{VERSION}")
    if version > VERSION:
        problem = f"version {version}, this closeranks reads up to {VERSION}"
        raise TopologyError(_FILE, problem, "update closeranks or write the file again here")


def read_link(item: object, file: str = _FILE) -> Link:
    """Read a link.

    Parameters
    ----------
    item : object
        A JSON object.
    file : str
        Kind of file that holds it, for the text of an error.

    Returns
    -------
    Link
        Missing members are unknown.

    Raises
    ------
    TopologyError
        If anything is unknown, of a wrong type or out of bounds.
    """
    link = Members(item, "a link", file)
    link.keys("latency_s", "bytes_per_s", "rails", "source", "segment_s")
    rails = link.integer("rails", 1, 4096) if link.has("rails") else link.absent("rails", 1)
    source = link.text("source", 64) if link.has("source") else "given"
    latency_s, bytes_per_s = link.number("latency_s"), link.number("bytes_per_s")
    return Link(latency_s, bytes_per_s, rails, source, link.number("segment_s"))


def _read_exception(item: object) -> tuple[tuple[str, int, int], Link]:
    exception = Members(item, "an exception", _FILE)
    exception.keys("level", "groups", "link")
    pair = exception.items("groups", 2)
    if len(pair) != 2 or any(type(group) is not int for group in pair):
        raise TopologyError(_FILE, f"exception between {str(pair)[:40]}", "give two group numbers")
    link = read_link(exception.get("link", dict))
    return (exception.text("level", 32), pair[0], pair[1]), link


def _read_devices(item: object, size: int) -> Devices:
    body = Members(item, "devices", _FILE)
    body.keys("tables", "of_node", "numa_of_rank")
    tables = []
    for table in body.items("tables", _MAX_TABLES):
        if not isinstance(table, list) or len(table) > _MAX_DEVICES:
            raise TopologyError(_FILE, "a device table is no short list", _WAY_OUT)
        tables.append(tuple(_read_device(entry) for entry in table))
    rows = {}
    for name in ("of_node", "numa_of_rank"):
        text = body.text(name, MAX_BYTES) if body.has(name) else ""
        rows[name] = tuple(_read_upto(text, size, name))
    return Devices(tuple(tables), rows["of_node"], rows["numa_of_rank"])


def _read_upto(text: str, size: int, what: str) -> list[int]:
    """Read a row of unknown length, at most ``size``, none below -1."""
    row: list[int] = read_runs(text, size, what, fewer=True).tolist()
    if row and min(row) < -1:
        raise TopologyError(_FILE, f"{what} holds {min(row)}", "give -1 for unknown")
    return row


def _read_device(item: object) -> Device:
    device = Members(item, "a device", _FILE)
    device.keys("kind", "name", "numa", "pci", "bytes_per_s", "near", "path")
    near = device.items("near", 64)
    if any(not isinstance(name, str) or len(name) > 64 for name in near):
        raise TopologyError(_FILE, "a device is near something without a name", _WAY_OUT)
    rate = device.number("bytes_per_s")
    return Device(
        kind=device.text("kind", 8),
        name=device.text("name", 64),
        numa=device.integer("numa", -1, 4096) if device.has("numa") else -1,
        pci=device.text("pci", 64) if device.has("pci") else "",
        bytes_per_s=None if rate is None else float(rate),
        near=tuple(near),
        path=device.text("path", 8) if device.has("path") else "",
    )
