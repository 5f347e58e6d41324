"""Recorded machines: fixtures spread out as /sys trees, NVML answers replayed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.comms.discovery.sysfs import cpu_list

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


class RecordedNVML:
    """Answers the calls of ``pynvml`` from a fixture."""

    class NVMLError(Exception):
        """What the library raises."""

    def __init__(self, gpus: list[dict[str, Any]]) -> None:
        self._gpus = gpus

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self._gpus[index]

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> str:
        return str(gpu["name"])

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> bytes:
        return str(gpu["uuid"]).encode()

    def nvmlDeviceGetPciInfo(self, gpu: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu["bus"].encode())

    def nvmlDeviceGetNvLinkState(self, gpu: dict[str, Any], link: int) -> int:
        if link >= len(gpu["nvlink_remote"]):
            raise self.NVMLError("Not Supported")
        return 1

    def nvmlDeviceGetNvLinkVersion(self, gpu: dict[str, Any], _link: int) -> int:
        return int(gpu["nvlink_version"])

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: dict[str, Any], link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu["nvlink_remote"][link])


def _names(pattern: str) -> Iterator[str]:
    match = re.search(r"\{([\d,-]+)\}", pattern)
    if match is None:
        yield pattern
        return
    for number in cpu_list(match[1]):
        yield pattern.replace(match[0], str(number))


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], tuple[Path, RecordedNVML]]:
    """Spread a fixture out below a folder; give that root and its NVML."""

    def spread(name: str) -> tuple[Path, RecordedNVML]:
        document = json.loads((FIXTURES / name).read_text())
        root = tmp_path / "root"
        for pattern, text in document["files"].items():
            for path in _names(pattern):
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text + "\n")
        for path, target in document["links"].items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
        return root, RecordedNVML(document["nvml"])

    return spread


@pytest.fixture
def nvml_of() -> type[RecordedNVML]:
    """Make NVML answer from a list of GPUs."""
    return RecordedNVML


@pytest.fixture
def fixtures() -> Path:
    """The folder of recorded files."""
    return FIXTURES
