"""A node's hardware from hwloc's XML, read by CPU sets and not by depth.

In hwloc 2, NUMA domains are memory children beside the caches they serve, so
their place in the tree says nothing; their ``cpuset`` does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple
from xml.parsers import expat

from closeranks.comms.topology.node_description import Domain, Fact, Nic
from closeranks.errors import TopologyError

_SOURCE = "hwloc"
_MOST_BYTES = 1 << 26
_MOST_OBJECTS = 1 << 18
_DEEPEST = 64
_NETWORK = {"2": "ethernet", "3": "infiniband"}  # osdev_type


class Hardware(NamedTuple):
    """A node's hardware from hwloc; see `NodeDescription` for the fields."""

    packages: Fact[tuple[Domain, ...]] = Fact()
    numa: Fact[tuple[Domain, ...]] = Fact()
    l3: Fact[tuple[Domain, ...]] = Fact()
    nics: tuple[Nic, ...] = ()
    cores: int = 0


def run_lstopo(timeout_s: float = 10.0) -> str:
    """Ask lstopo for this node's XML.  Local.

    Parameters
    ----------
    timeout_s : float, default 10.0
        Longest wait, seconds.

    Returns
    -------
    str
        XML, "" where there is no lstopo or it failed.
    """
    program = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
    if program is None:
        return ""
    try:
        # a rank may see only its own CPUs; all CPUs of the node are wanted
        done = subprocess.run(
            [program, "--disallowed", "--of", "xml"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def parse(xml: str) -> Hardware:
    """Read XML of ``lstopo --of xml``, hwloc 2.

    Parameters
    ----------
    xml : str
        At most 64 MiB; need not be trusted.

    Returns
    -------
    Hardware
        Packages, domains and caches in order.

    Raises
    ------
    TopologyError
        If it is no XML of hwloc, too large or too deep, or declares entities.
    """
    if len(xml) > _MOST_BYTES:
        raise _refusal(f"{len(xml)} characters, at most {_MOST_BYTES}")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.EntityDeclHandler = reader.entity
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(xml, True)
    except (expat.ExpatError, UnicodeError) as error:
        raise _refusal(f"no XML ({error})") from None
    return reader.hardware()


def _refusal(problem: str) -> TopologyError:
    return TopologyError("hwloc", problem, "write it with: lstopo --of xml FILE")


def cpu_set(text: str) -> tuple[int, ...]:
    """Read hwloc's format of a set: ``0x0000000f,0xffffffff``.

    Parameters
    ----------
    text : str
        32 bits a word, the highest first.

    Returns
    -------
    tuple of int
        Ascending.

    Raises
    ------
    TopologyError
        If it is no finite set below 65536.
    """
    words = text.split(",")
    if len(words) > 2048 or not all(re.fullmatch(r"(0x[0-9a-fA-F]{1,8})?", w) for w in words):
        raise _refusal(f"the set {text[:40]!r}")
    bits = 0
    for word in words:
        bits = bits << 32 | int(word or "0", 16)
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


class _Reader:
    """Collects objects while expat walks through the file."""

    def __init__(self) -> None:
        self._path: list[Mapping[str, str]] = []
        self._found: dict[str, list[Domain]] = {"Package": [], "NUMANode": [], "L3Cache": []}
        self._nics: list[Nic] = []
        self._cores = 0
        self._objects = 0
        self._depth = 0

    def doctype(self, name: str, _system: str | None, _public: str | None, internal: int) -> None:
        """Accept hwloc's own line, nothing that could declare something."""
        if name != "topology" or internal:
            raise _refusal(f"a document type {name[:40]!r} with declarations")

    def entity(self, name: str, *_: object) -> None:
        """Refuse every entity."""
        raise _refusal(f"it declares the entity {name[:40]!r}")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Take one object in."""
        self._objects += 1
        self._depth += 1
        if self._objects > _MOST_OBJECTS or self._depth > _DEEPEST:
            raise _refusal(f"more than {_MOST_OBJECTS} objects or {_DEEPEST} levels")
        if self._depth == 1 and name != "topology":
            raise _refusal(f"the root is {name[:40]!r}, not 'topology'")
        if name != "object":
            return
        self._path.append(attributes)
        kind = attributes.get("type", "")
        if kind in self._found:
            self._take(self._found[kind], attributes)
        elif kind == "Core":
            self._cores += 1
        elif kind == "OSDev" and attributes.get("osdev_type") in _NETWORK:
            self._nics.append(self._nic(attributes))

    def end(self, name: str) -> None:
        """Leave an object."""
        self._depth -= 1
        if name == "object":
            self._path.pop()

    def _take(self, domains: list[Domain], attributes: Mapping[str, str]) -> None:
        if attributes.get("type") == "L3Cache":
            number = str(len(domains))
        else:
            number = attributes.get("os_index", str(len(domains)))
        cpus = cpu_set(attributes.get("cpuset", ""))
        if not re.fullmatch(r"\d{1,6}", number):
            raise _refusal(f"os_index is {number[:40]!r}")
        if cpus:
            domains.append(Domain(int(number), cpus))

    def _nic(self, attributes: Mapping[str, str]) -> Nic:
        way: list[str] = []
        nodes: tuple[int, ...] = ()
        for ancestor in self._path:
            if "nodeset" in ancestor:
                nodes = cpu_set(ancestor["nodeset"])
            host = re.fullmatch(
                r"([0-9a-f]{4,8}):\[([0-9a-f]{2})-.*", ancestor.get("bridge_pci", "")
            )
            if ancestor.get("bridge_type", "").startswith("0-") and host:
                way.append(f"pci{host[1]}:{host[2]}")
            elif "pci_busid" in ancestor:
                way.append(ancestor["pci_busid"][:16])
        return Nic(
            attributes.get("name", "?")[:64],
            numa=Fact(nodes[0], _SOURCE) if len(nodes) == 1 else Fact(),
            pci=Fact(tuple(way), _SOURCE) if len(way) > 1 else Fact(),
            fabric=_NETWORK[attributes["osdev_type"]],
        )

    def hardware(self) -> Hardware:
        """Return the hardware found."""
        packages, numa, l3 = (_fact(domains) for domains in self._found.values())
        return Hardware(packages, numa, l3, tuple(self._nics), self._cores)


def _fact(domains: list[Domain]) -> Fact[tuple[Domain, ...]]:
    """Return domains in order, none as unknown."""
    if not domains:
        return Fact()
    return Fact(tuple(sorted(domains, key=lambda domain: domain.number)), _SOURCE)
