"""Saves made in one process, by the code that ranks run: all ranks one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from closeranks.checkpoint.control.single_process import SingleProcessChannel
from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.memory import slot_file
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.coding_tasks import encoding
from closeranks.checkpoint.placement.slot_header import COMMITTED, STATES, WRITING, Header
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout, chunk_for
from closeranks.checkpoint.restore.coding_work import Recoding
from closeranks.checkpoint.restore.generation_choice import Save, saves
from closeranks.checkpoint.restore.recovery_search import RankNodes, SaveRecovery, scan
from closeranks.checkpoint.state import state_tree
from closeranks.checkpoint.state.rank_image import describe

NAME = "ground"


@dataclass
class Ground:
    """One save on one node's memory.

    Attributes
    ----------
    root : Path
        The file system in memory.
    layout : StripeLayout
        Of the only group.
    states : dict of int to object
        What each rank has saved.
    """

    root: Path
    layout: StripeLayout
    states: Mapping[int, Any]

    def paths(self) -> dict[Share, Path]:
        """Give the files of the newest save."""
        return {share: Path(found.path) for share, found in self.newest().found.items()}

    def saves(self) -> list[Save]:
        """Find what is there."""
        found, unread = scan(SingleProcessChannel(), RankNodes([0], 0), NAME, self.root)
        assert not unread
        return saves(found)

    def newest(self) -> Save:
        """Find the newest save."""
        return self.saves()[0]

    def recovery(self, save: Save | None = None) -> SaveRecovery:
        """Begin to restore a save."""
        return SaveRecovery(
            save or self.newest(), SingleProcessChannel(), RankNodes([0], 0), self.root
        )


def contents(path: Path) -> tuple[bytes, ...]:
    """Give all that a slot keeps, and that its check sums fit."""
    slot = Slot.attach(path)
    areas = (slot.data, *slot.parity)
    assert not any(area.damaged() for area in areas)
    found = tuple(area.memory.tobytes() for area in areas)
    slot.close()
    return found


def collect(ground: Ground, names: Sequence[str] = "abcdefgh") -> list[Path]:
    """Carry the slots of each node into a folder of its own."""
    folders = [ground.root / names[node] for node in sorted(ground.layout.ranks)]
    for path in list((ground.root / f"closeranks-{os.getuid()}").iterdir()):
        member = int(path.name.rpartition(".")[0].rpartition("-")[2])
        folder = folders[ground.layout.ring[member]]
        folder.mkdir(0o700, exist_ok=True)
        path.rename(folder / path.name)
    return folders


def make(
    root: Path,
    sizes: Sequence[int],
    parity: int,
    *,
    ring: Sequence[int] | None = None,
    ranks: Mapping[int, Sequence[int]] | None = None,
    lanes: int = 1,
    generation: int = 1,
    state: str = COMMITTED,
    epoch: int = 1 << 32,
    run: str = "0" * 16,
    more: Callable[[int], Mapping[str, Any]] = lambda _: {},
    states: Mapping[int, Any] | None = None,
) -> Ground:
    """Save: each rank an array of so many bytes of its own, what all have alike, and more."""
    rng = np.random.default_rng([*sizes, parity, generation])
    states = states or {
        rank: {"own": rng.integers(0, 256, size, np.uint8), "alike": np.arange(99.0), "rank": rank,
               **more(rank)}
        for rank, size in enumerate(sizes)
    }  # fmt: skip
    extents = {}
    for rank, value in states.items():
        shape, leaves = state_tree.flatten(value)
        alike = [leaf.path.startswith("alike") for leaf in leaves]
        extents[rank] = describe(shape, leaves, alike, len(sizes), rank)
    of = {rank: extent.size for rank, extent in extents.items()}
    nodes = {0: tuple(states)} if ranks is None else {n: tuple(own) for n, own in ranks.items()}
    members = tuple(ring or (0,) * len(sizes))
    layout = StripeLayout(0, parity, lanes, members, nodes, of, chunk_for(of, 1 << 18))
    header = Header(
        name=NAME, run=run, epoch=epoch, generation=generation, step=10 * generation,
        state=WRITING, world=len(sizes), groups=1, share=Share(0, 0, 0), layout=layout,
    )  # fmt: skip
    slots = {
        share: Slot.create(replace(header, share=share), generation % 2, root)
        for share in layout.shares
    }
    for rank, extent in extents.items():
        slot_file.write(extent, layout, rank, slots)
    tasks = encoding(layout, Code(layout.data, parity), apart=False)
    alone = [replace(task, worker=0) for task in tasks]
    Recoding(alone, layout, slots, lambda _: 0, lambda *_: True, SingleProcessChannel()).run()
    for slot in slots.values():
        for one in STATES[1 : STATES.index(state) + 1]:
            slot.write(replace(slot.header, state=one))
        slot.close()
    return Ground(root, layout, states)
