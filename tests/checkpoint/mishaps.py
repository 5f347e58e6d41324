"""What happens to slots while no job runs: lost, cut, damaged, forged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

from closeranks.checkpoint.memory.slot_file import Slot, found, look
from closeranks.checkpoint.placement.slot_header import Header
from closeranks.errors import CheckpointError, Unavailable

#: What may happen to a file.
MISHAPS: Final = ("erase", "data", "parity", "header", "headers", "cut", "forge", "grow")


def slots_in(root: Path, name: str) -> Iterator[tuple[Path, Header]]:
    """Give the slots of a name that say something."""
    for path, _ in sorted(found(name, root)):
        try:
            yield path, look(path)
        except (CheckpointError, Unavailable):
            continue


def hurt(path: Path, how: str, rng: Random) -> None:
    """Let something happen to a slot that is whole, or was."""
    if how == "erase":
        path.unlink()
    elif how == "cut":
        with path.open("r+b") as file:
            file.truncate(rng.randrange(path.stat().st_size))
    elif how == "grow":
        with path.open("ab") as file:
            file.write(b"more")
    elif how in ("data", "parity"):
        _flip(path, how, rng)
    else:
        _spoil(path, how, rng)


def _flip(path: Path, how: str, rng: Random) -> None:
    """Change a byte of the data, or of a parity."""
    slot = Slot.attach(path)
    memory = slot.data.memory if how == "data" else rng.choice(slot.parity).memory
    if memory.size:
        memory[rng.randrange(memory.size)] ^= 1 << rng.randrange(8)
    slot.close()


def _spoil(path: Path, how: str, rng: Random) -> None:
    """Change the newer header, or both, or put a forged one there that is whole."""
    slot = Slot.attach(path)
    if how == "forge":
        slot.write(replace(slot.header, layout=_Forged(slot.header, rng)))  # type: ignore[arg-type]
    else:
        starts = (0, 1) if how == "headers" else (slot._count % 2,)
        for start in starts:
            slot.file.array[start * slot._room + rng.randrange(64)] ^= 0xFF
    slot.close()


class _Forged:
    """A layout whose numbers are huge; it looks like another one to who writes it."""

    def __init__(self, header: Header, rng: Random) -> None:
        self._layout, self._rng = header.layout, rng

    def __getattr__(self, name: str) -> object:
        return getattr(self._layout, name)

    @property
    def text(self) -> str:
        """Say that there is far more."""
        said = self._layout.to_json()
        how = self._rng.randrange(4)
        if how == 0:
            said["sizes"] = [[rank, head, 1 << 61] for rank, head, _ in said["sizes"]]
        elif how == 1:
            said["lanes"] = 1 << 16
        elif how == 2:
            said["chunk"] = 1 << 50
        else:
            said["sizes"] = [[rank, 1 << 40, body] for rank, _, body in said["sizes"]]
        return json.dumps(said)


def lose(root: Path) -> None:
    """Lose a node's memory."""
    shutil.rmtree(root)
    root.mkdir()
