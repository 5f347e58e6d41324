"""Saves made in one process, by the code that ranks run: all ranks one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from closeranks.checkpoint import nest, writing
from closeranks.checkpoint.choosing import Save, saves
from closeranks.checkpoint.coding import encoding
from closeranks.checkpoint.erasure import Code
from closeranks.checkpoint.extent import describe
from closeranks.checkpoint.finding import Nodes, Recovery, scan
from closeranks.checkpoint.header import COMMITTED, STATES, WRITING, Header
from closeranks.checkpoint.layout import Layout, Share, chunk_for
from closeranks.checkpoint.recoding import Recoding
from closeranks.checkpoint.slots import Slot

NAME = "ground"


class Alone:
    """What a rank says to others, where there are none."""

    rank, size, epoch = 0, 1, 0

    def least(self, values: Any) -> Any:
        return np.asarray(values, np.int64)

    def gather(self, values: Any) -> Any:
        return np.asarray(values)[None]

    def everything(self, mine: object) -> list[Any]:
        return [mine]

    def across(self, values: Any) -> Any:
        return np.asarray(values, np.int64)

    def together(self, operation: str, problem: BaseException | None) -> None:
        del operation
        if problem is not None:
            raise problem

    def taken(self, operation: str, step: Callable[[], Any]) -> Any:
        del operation
        return step()

    def move(self, sends: Sequence[Any], receives: Sequence[Any]) -> Callable[[], None]:
        assert not sends
        assert not receives
        return lambda: None


@dataclass
class Ground:
    """One save on one node's memory.

    Attributes
    ----------
    root : Path
        The file system in memory.
    layout : Layout
        Of the only group.
    states : dict of int to object
        What each rank has saved.
    """

    root: Path
    layout: Layout
    states: Mapping[int, Any]

    def paths(self) -> dict[Share, Path]:
        """Give the files of the newest save."""
        return {share: Path(found.path) for share, found in self.newest().found.items()}

    def saves(self) -> list[Save]:
        """Find what is there."""
        found, unread = scan(Alone(), Nodes([0], 0), NAME, self.root)  # type: ignore[arg-type]
        assert not unread
        return saves(found)

    def newest(self) -> Save:
        """Find the newest save."""
        return self.saves()[0]

    def recovery(self, save: Save | None = None) -> Recovery:
        """Begin to restore a save."""
        return Recovery(save or self.newest(), Alone(), Nodes([0], 0), self.root)  # type: ignore[arg-type]


def contents(path: Path) -> tuple[bytes, ...]:
    """Give all that a slot keeps, and that its check sums fit."""
    slot = Slot.attach(path)
    areas = (slot.data, *slot.parity)
    assert not any(area.damaged() for area in areas)
    found = tuple(area.memory.tobytes() for area in areas)
    slot.close()
    return found


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
) -> Ground:
    """Save: each rank an array of so many bytes of its own, and what all have alike."""
    rng = np.random.default_rng([*sizes, parity, generation])
    states = {
        rank: {"own": rng.integers(0, 256, size, np.uint8), "alike": np.arange(99.0), "rank": rank}
        for rank, size in enumerate(sizes)
    }
    extents = {}
    for rank, value in states.items():
        shape, leaves = nest.flatten(value)
        alike = [leaf.path == "alike" for leaf in leaves]
        extents[rank] = describe(shape, leaves, alike, len(sizes), rank)
    of = {rank: extent.size for rank, extent in extents.items()}
    nodes = {0: tuple(states)} if ranks is None else {n: tuple(own) for n, own in ranks.items()}
    members = tuple(ring or (0,) * len(sizes))
    layout = Layout(0, parity, lanes, members, nodes, of, chunk_for(of, 1 << 18))
    header = Header(
        name=NAME, run=run, epoch=epoch, generation=generation, step=10 * generation,
        state=WRITING, world=len(sizes), groups=1, share=Share(0, 0, 0), layout=layout,
    )  # fmt: skip
    slots = {
        share: Slot.create(replace(header, share=share), generation % 2, root)
        for share in layout.shares
    }
    for rank, extent in extents.items():
        writing.write(extent, layout, rank, slots)
    tasks = encoding(layout, Code(layout.data, parity), apart=False)
    alone = [replace(task, worker=0) for task in tasks]
    recoding = Recoding(alone, layout, slots, lambda _: 0, lambda *_: True, Alone())  # type: ignore[arg-type]
    for _ in recoding.run():
        pass
    for slot in slots.values():
        for one in STATES[1 : STATES.index(state) + 1]:
            slot.write(replace(slot.header, state=one))
        slot.close()
    return Ground(root, layout, states)
