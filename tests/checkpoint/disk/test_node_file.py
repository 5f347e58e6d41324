"""The file of a node, written from slots in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from closeranks.checkpoint.disk import node_file
from closeranks.checkpoint.disk.node_file import PersistedSave
from closeranks.checkpoint.memory.slot_file import Slot
from tests.checkpoint.ground import NAME, Ground, make


@pytest.fixture
def ground() -> Iterator[Ground]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        yield make(Path(made), [3000, 5000, 1000], 1)


def test_a_child_forked_meanwhile_does_not_keep_the_lock(ground: Ground, tmp_path: Path) -> None:
    slots = {share: Slot.attach(path) for share, path in ground.paths().items()}
    kept, ends = PersistedSave.of(slots), os.pipe()
    children: list[int] = []

    def fork() -> None:  # as a loader of data does, which lives as long as the program
        if not children:
            child = os.fork()
            if not child:
                os.close(ends[1])
                os.read(ends[0], 1)
                os._exit(0)
            children.append(child)

    class Waited(Exception):
        pass

    def never() -> None:
        raise Waited

    try:
        node_file.write(tmp_path / NAME, kept.about(NAME, 0, 1), kept, fork)
        assert children
        with node_file._alone(kept, never):
            pass
    finally:
        os.close(ends[1])
        for child in children:
            os.waitpid(child, 0)
        os.close(ends[0])
        for slot in slots.values():
            slot.close()
    assert len(list(tmp_path.rglob("node-*.h5"))) == 1
