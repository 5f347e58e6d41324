"""Who sees the same node memory."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from closeranks.comms.mpi import node_peers
from closeranks.comms.mpi.node_peers import node_memory_id


def test_a_folder_is_its_own_memory(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert node_memory_id(one) == node_memory_id(one)
    assert node_memory_id(one) != node_memory_id(other)
    assert node_memory_id(one) != node_memory_id(tmp_path / "none")


def test_another_kernel_has_other_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = node_memory_id(tmp_path)
    monkeypatch.setattr(node_peers, "boot_id", lambda _: "another")
    assert node_memory_id(tmp_path) != here


def test_another_host_has_other_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = node_memory_id(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert node_memory_id(tmp_path) != here
