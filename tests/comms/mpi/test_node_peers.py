"""Who sees the same node memory."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from closeranks.comms.mpi import node_peers
from closeranks.comms.mpi.node_peers import memory_here


def test_a_folder_is_its_own_memory(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert memory_here(one) == memory_here(one)
    assert memory_here(one) != memory_here(other)
    assert memory_here(one) != memory_here(tmp_path / "none")


def test_another_kernel_has_other_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = memory_here(tmp_path)
    monkeypatch.setattr(node_peers, "boot_id", lambda _: "another")
    assert memory_here(tmp_path) != here


def test_another_host_has_other_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = memory_here(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert memory_here(tmp_path) != here
