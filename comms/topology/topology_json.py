"""The JSON form of a topology: readable, versioned, bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from closeranks.comms.topology.json_fields import Members
from closeranks.comms.topology.level_table import MAX_LEVELS, MAX_RANKS
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_devices import Device, Devices
from closeranks.comms.topology.run_length import read_runs, write_runs
from closeranks.comms.topology.strict_json import load
from closeranks.errors import TopologyError

FORMAT = "closeranks topology"
VERSION = 1
MAX_BYTES = 1 << 24
_MAX_VALUES = 1_000_000
_MAX_EXCEPTIONS = 1 << 16
_MAX_TABLES = 4096
_MAX_DEVICES = 1024
_FILE = "topology file"
_WAY_OUT = "see the format in docs/topology.md"


class Parts(NamedTuple):
    """What a topology is made of; see `Topology` for the fields."""

    levels: tuple[str, ...]
    groups: npt.NDArray[np.int32]
    links: Mapping[str, Link]
    exceptions: Mapping[tuple[str, int, int], Link]
    devices: Devices


def write(parts: Parts) -> str:
    """Write the parts of a topology as JSON.

    Parameters
    ----------
    parts : Parts
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


def read(text: str) -> Parts:
    """Read JSON that `write` or a person wrote.

    Parameters
    ----------
    text : str
        At most 16 MiB.

    Returns
    -------
    Parts
        Right in form; `Topology` checks that they make one hierarchy.

    Raises
    ------
    TopologyError
        If anything is unknown, missing, of a wrong type or out of bounds.
    """
    document = load(text, _FILE, max_bytes=MAX_BYTES, max_values=_MAX_VALUES)
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
    return Parts(tuple(levels), np.array(rows, dtype=np.int32), links, exceptions, devices)


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
        What kind of file it stands in, for the text of an error.

    Returns
    -------
    Link
        What is left out is unknown.

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
