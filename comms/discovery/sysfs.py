"""A node's hardware from Linux /sys and /proc, below any root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from closeranks.comms.topology.node_description import Domain, Fact, Nic

_SOURCE = "sysfs"
_MOST = 4096
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MEGABIT = 1e6 / 8
_GIGABIT = 1e9 / 8


def read_text(path: Path) -> str:
    """Read one small file, "" if it cannot be read.

    Parameters
    ----------
    path : Path
        A file of /sys or /proc; many exist and still refuse to be read.

    Returns
    -------
    str
        At most 64 KiB without surrounding blanks.
    """
    try:
        with path.open("rb") as file:
            return file.read(1 << 16).decode(errors="replace").strip()
    except OSError:
        return ""


def read_int(path: Path) -> int | None:
    """Read a file that holds one integer.

    Parameters
    ----------
    path : Path
        A file of /sys or /proc.

    Returns
    -------
    int or None
        None if it cannot be read or holds something else.
    """
    text = read_text(path)
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format, ``0-3,8``.

    Parameters
    ----------
    text : str
        Content of a ``cpulist`` file.

    Returns
    -------
    tuple of int
        Ascending; numbers of 65536 and more are left out.
    """
    cpus: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", piece)
        if match:
            first = int(match[1])
            last = int(match[2] or match[1])
            cpus.update(range(first, min(last, 65535) + 1))
    return tuple(sorted(cpus))


def _numbered(folder: Path, name: str) -> Iterator[tuple[int, Path]]:
    """Yield entries called name0, name1, ... in order of their number."""
    found = []
    if folder.is_dir():
        for entry in folder.iterdir():
            match = re.fullmatch(rf"{name}(\d{{1,6}})", entry.name)
            if match:
                found.append((int(match[1]), entry))
    yield from sorted(found)[:_MOST]


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, mlx5_2 before mlx5_10."""
    if not folder.is_dir():
        return []
    parts = re.compile(r"(\d+)")
    return sorted(
        folder.iterdir(),
        key=lambda e: [(len(p), p) if p.isdigit() else (0, p) for p in parts.split(e.name)],
    )[:_MOST]


def packages(root: Path) -> Fact[tuple[Domain, ...]]:
    """Return the processor packages.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.

    Returns
    -------
    Fact of tuple of Domain
        In order of their number.
    """
    cpus: dict[int, list[int]] = {}
    for cpu, entry in _numbered(root / "sys/devices/system/cpu", "cpu"):
        number = read_int(entry / "topology/physical_package_id")
        if number is not None and number >= 0:
            cpus.setdefault(number, []).append(cpu)
    return _domains(cpus)


def numa(root: Path) -> Fact[tuple[Domain, ...]]:
    """Return the NUMA domains that have CPUs.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.

    Returns
    -------
    Fact of tuple of Domain
        In order of their number.
    """
    folder = root / "sys/devices/system/node"
    found = {n: list(cpu_list(read_text(e / "cpulist"))) for n, e in _numbered(folder, "node")}
    return _domains({number: cpus for number, cpus in found.items() if cpus})


def distances(root: Path) -> Fact[tuple[tuple[int, ...], ...]]:
    """Return the NUMA distances.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.

    Returns
    -------
    Fact of tuple of tuple of int
        One row per NUMA domain that has CPUs, 10 is local.
    """
    found = list(_numbered(root / "sys/devices/system/node", "node"))
    kept = [i for i, (_, entry) in enumerate(found) if cpu_list(read_text(entry / "cpulist"))]
    rows = []
    for i in kept:
        words = read_text(found[i][1] / "distance").split()
        if len(words) != len(found) or not all(word.isdigit() for word in words):
            return Fact()
        rows.append(tuple(int(words[k]) for k in kept))
    return Fact(tuple(rows), _SOURCE) if rows else Fact()


def l3(root: Path) -> Fact[tuple[Domain, ...]]:
    """Return the level-3 caches.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.

    Returns
    -------
    Fact of tuple of Domain
        Numbered in order of their first CPU.
    """
    found: list[Domain] = []
    seen: set[int] = set()
    for cpu, entry in _numbered(root / "sys/devices/system/cpu", "cpu"):
        if cpu in seen:
            continue
        for _, cache in _numbered(entry / "cache", "index"):
            if read_int(cache / "level") == 3:
                cpus = cpu_list(read_text(cache / "shared_cpu_list")) or (cpu,)
                found.append(Domain(len(found), cpus))
                seen.update(cpus)
    return Fact(tuple(found), _SOURCE) if found else Fact()


#: A rank's share of a third-level cache is at most so many times its second-level cache. If
#: dozens of cores share the cache, others use the rest, unseen on virtual machines.
_MOST_OF_L3: Final = 32


def l3_share(root: Path, ranks: int) -> int:
    """Give the bytes of the level-3 cache that each rank of a node may count on.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.
    ranks : int
        Ranks of the node, spread over its cores.

    Returns
    -------
    int
        0 if sysfs does not tell.
    """
    for _, entry in _numbered(root / "sys/devices/system/cpu", "cpu"):
        found = {
            read_int(cache / "level"): cache for _, cache in _numbered(entry / "cache", "index")
        }
        if last := _kib(found.get(3)):
            sharing = len(cpu_list(read_text(found[3] / "shared_cpu_list"))) or ranks
            share, own = last // min(ranks, sharing), _kib(found.get(2))
            return min(share, _MOST_OF_L3 * own or share) * 1024
    return 0


def _kib(cache: Path | None) -> int:
    """Give the size of a cache, 0 if sysfs does not tell."""
    size = read_text(cache / "size") if cache else ""
    return int(size[:-1]) if size.endswith("K") and size[:-1].isdigit() else 0


def _domains(cpus: dict[int, list[int]]) -> Fact[tuple[Domain, ...]]:
    made = tuple(Domain(number, tuple(sorted(cpus[number]))) for number in sorted(cpus))
    return Fact(made, _SOURCE) if made else Fact()


def pci_path(root: Path, device: Path) -> Fact[tuple[str, ...]]:
    """Return the way from the root complex to a device.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.
    device : Path
        A link of /sys to the device, or the device's folder.

    Returns
    -------
    Fact of tuple of str
        Root complex ("pci0000:00"), then bus addresses, the device last.
    """
    try:
        parts = device.resolve().relative_to((root / "sys/devices").resolve()).parts
    except (OSError, ValueError, RuntimeError):
        return Fact()
    start = next((i for i, part in enumerate(parts) if part.startswith("pci")), None)
    if start is None:
        return Fact()
    way = [part for part in parts[start + 1 :] if _BDF.fullmatch(part)]
    return Fact((parts[start], *way), _SOURCE) if way else Fact()


def device_numa(device: Path) -> Fact[int]:
    """Return the NUMA domain a device hangs on.

    Parameters
    ----------
    device : Path
        The device's folder or a link to it.

    Returns
    -------
    Fact of int
        Unknown where the kernel says -1, as in virtual machines.
    """
    number = read_int(device / "numa_node")
    return Fact() if number is None or number < 0 else Fact(number, _SOURCE)


def nics(root: Path) -> tuple[Nic, ...]:
    """Return the network cards: InfiniBand devices first, then Ethernet.

    Parameters
    ----------
    root : Path
        ``Path("/")`` or a recorded tree.

    Returns
    -------
    tuple of Nic
        A card that is both (RoCE, IPoIB) stands there once, as InfiniBand;
        the loopback and bridges are left out.
    """
    fabric = list(_infiniband(root))
    taken = {nic.pci.value for nic in fabric if nic.pci.value}
    ethernet = [nic for nic in _ethernet(root) if nic.pci.value not in taken]
    return tuple((fabric + ethernet)[:_MOST])


def _infiniband(root: Path) -> Iterator[Nic]:
    folder = root / "sys/class/infiniband"
    for entry in _entries(folder):
        rates, active = [], []
        for _, port in _numbered(entry / "ports", ""):
            match = re.match(r"(\d+(?:\.\d+)?)\s*Gb/sec", read_text(port / "rate"))
            up = "ACTIVE" in read_text(port / "state")
            active.append(up)
            if match and up:
                rates.append(float(match[1]) * _GIGABIT)
        yield Nic(
            entry.name[:64],
            Fact(sum(rates), _SOURCE) if rates else Fact(),
            device_numa(entry / "device"),
            pci_path(root, entry / "device"),
            Fact(any(active), _SOURCE) if active else Fact(),
            "infiniband",
        )


def _ethernet(root: Path) -> Iterator[Nic]:
    folder = root / "sys/class/net"
    addressed = _addressed(root)
    for entry in _entries(folder):
        if read_int(entry / "type") != 1 or (entry / "bridge").exists():
            continue
        speed = read_int(entry / "speed")
        up = read_text(entry / "operstate") in ("up", "unknown")
        yield Nic(
            entry.name[:64],
            Fact(speed * _MEGABIT, _SOURCE) if speed is not None and speed > 0 else Fact(),
            device_numa(entry / "device"),
            pci_path(root, entry / "device"),
            Fact(up and entry.name in addressed, _SOURCE),
        )


def _addressed(root: Path) -> set[str]:
    """Return the interfaces with an IPv4 route or a global IPv6 address."""
    lines = read_text(root / "proc/net/route").splitlines()[1:]
    names = {line.split()[0] for line in lines if line.split()}
    for line in read_text(root / "proc/net/if_inet6").splitlines():
        words = line.split()
        if len(words) == 6 and words[3] == "00":
            names.add(words[5])
    return names
