"""A node's GPUs, from NVIDIA's management library or a recording of it.

`read_gpus` takes an object with the functions of the module ``pynvml``
(nvidia-ml-py), so tests can replay the answers of a real node.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from closeranks.comms.topology.node_description import Fact, Gpu

_SOURCE = "nvml"
_MOST_GPUS = 64
_MOST_LINKS = 36
# bytes/s of one NVLink in one direction, by NVML's number of its version:
# 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
_NVLINK = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 25e9, 6: 25e9, 7: 50e9}

T = TypeVar("T")


def start_nvml() -> Any | None:
    """Start NVML if it is installed and has a driver.  Local.

    Returns
    -------
    module or None
        ``pynvml``, to be shut down by the caller.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def read_gpus(nvml: Any) -> tuple[Gpu, ...]:
    """Describe the GPUs of a node.

    Parameters
    ----------
    nvml : object
        With the functions of ``pynvml``, started.

    Returns
    -------
    tuple of Gpu
        "GPU 0", "GPU 1", ... in the library's order.  ``pci`` holds the bus
        address only; NUMA domain and way come from sysfs.
    """
    number = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(min(number, _MOST_GPUS))]
    buses = [_bus(nvml, handle) for handle in handles]
    reached = [_links(nvml, handle) for handle in handles]
    return tuple(
        Gpu(
            name=f"GPU {i}",
            model=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)),
            uuid=_text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)),
            pci=Fact((buses[i],), _SOURCE) if buses[i] else Fact(),
            nvlink=_peers(i, buses, reached),
        )
        for i, handle in enumerate(handles)
    )


def _ask(nvml: Any, function: Callable[..., T], *arguments: object) -> T | None:
    """Call a function of the library; not supported is unknown."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: object) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value or ""))[:96]


def _bus(nvml: Any, handle: object) -> str:
    """Return a GPU's bus address as sysfs writes it."""
    info = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return "" if info is None else bus_address(_text(info.busId))


def bus_address(text: str) -> str:
    """Turn NVML's bus address into the kernel's.

    Parameters
    ----------
    text : str
        "00000000:1B:00.0".

    Returns
    -------
    str
        "0000:1b:00.0", "" if it is none.
    """
    match = re.fullmatch(r"0*([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", text)
    return f"{match[1]}:{match[2]}:{match[3]}.{match[4]}".lower() if match else ""


def _links(nvml: Any, handle: object) -> list[tuple[str, float]]:
    """Return the far end and bandwidth of each active NVLink of a GPU."""
    found = []
    for link in range(min(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18), _MOST_LINKS)):
        if not _ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        version = _ask(nvml, nvml.nvmlDeviceGetNvLinkVersion, handle, link) or 0
        remote = _ask(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        far = "" if remote is None else bus_address(_text(remote.busId))
        found.append((far, _NVLINK.get(version, 0.0)))
    return found


def _peers(
    mine: int, buses: list[str], reached: list[list[tuple[str, float]]]
) -> Fact[tuple[tuple[str, float], ...]]:
    """Return the GPUs that one GPU reaches, directly or through a switch."""
    rates: dict[int, float] = {}
    direct = {bus: i for i, bus in enumerate(buses) if bus}
    for far, rate in reached[mine]:
        if far in direct:
            rates[direct[far]] = rates.get(direct[far], 0.0) + rate
    switched = [[rate for far, rate in links if far not in direct] for links in reached]
    for other, links in enumerate(switched):
        if other != mine and links and switched[mine]:
            rates[other] = rates.get(other, 0.0) + min(sum(links), sum(switched[mine]))
    peers = tuple((f"GPU {i}", rates[i]) for i in sorted(rates))
    return Fact(peers, _SOURCE) if reached[mine] else Fact()
