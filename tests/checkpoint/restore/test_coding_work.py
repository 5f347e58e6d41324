"""Parity between nodes: ranks that rest, and ranks that do not, make the same one."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closeranks.checkpoint.control.pending import SHARE, Pace
from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.memory.slot_file import Slot
from closeranks.checkpoint.placement.coding_tasks import encoding
from closeranks.checkpoint.placement.stripe_layout import Share, StripeLayout
from closeranks.checkpoint.restore.coding_work import Recoding
from tests.checkpoint.ground import contents, make


class Mail:
    """What ranks that are threads send each other, in order."""

    def __init__(self, rank: int, boxes: dict[tuple[int, int], queue.Queue[bytes]]) -> None:
        self.rank, self.boxes = rank, boxes

    def move(
        self, sends: Sequence[tuple[int, Bytes]], receives: Sequence[tuple[int, Bytes]]
    ) -> Callable[[], None]:
        for rank, data in sends:
            self.boxes[self.rank, rank].put(data.tobytes())

        def finish() -> None:
            for rank, target in receives:
                target[:] = np.frombuffer(self.boxes[rank, self.rank].get(timeout=30), np.uint8)

        return finish


def run(layout: StripeLayout, slots: dict[Share, Slot], paces: Sequence[Pace | None]) -> None:
    """Make the parities of a group, each rank on a node of its own."""
    boxes: dict[tuple[int, int], queue.Queue[bytes]] = defaultdict(queue.Queue)
    for pair in ((a, b) for a in range(len(paces)) for b in range(len(paces))):
        boxes[pair] = queue.Queue()
    tasks, problems = encoding(layout, Code(layout.data, layout.parity), apart=True), list[Any]()

    def work(rank: int) -> None:
        own = {share: slot for share, slot in slots.items() if share.member == rank}
        channel: Any = Mail(rank, boxes)

        def reaches(other: int, share: Share) -> bool:
            return share.member == other

        try:
            Recoding(tasks, layout, own, layout.keeper, reaches, channel).run(paces[rank])
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(paces))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems


@pytest.mark.parametrize("parity", [1, 2])
@pytest.mark.parametrize("talking", [(), (1,), (0, 1, 2)], ids=str)
def test_ranks_that_rest_make_the_same_parity(
    tmp_path: Path, parity: int, talking: tuple[int, ...]
) -> None:
    ranks = {rank: (rank,) for rank in range(3)}
    ground = make(tmp_path, [900_000, 7, 700_000], parity, ring=(0, 1, 2), ranks=ranks)
    before = {share: contents(path) for share, path in ground.paths().items()}
    slots = {share: Slot.attach(path) for share, path in ground.paths().items()}
    for slot in slots.values():
        for area in slot.parity:
            area.memory[:] = 1
            area.kept[:] = 1
    rests: dict[int, list[float]] = defaultdict(list)
    paces = [_pace(rests[rank]) if rank in talking else None for rank in range(3)]
    run(ground.layout, slots, paces)
    for slot in slots.values():
        slot.close()
    assert {share: contents(path) for share, path in ground.paths().items()} == before
    segments = -(-ground.layout.block // (256 << 10))
    for rank in talking:
        assert len(rests[rank]) >= segments - 1 > 0


def _pace(rests: list[float]) -> Pace:
    """A pace of a program that always talks; its rests are noted, and take no time."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        assert 0 < seconds < 1 / SHARE
        rests.append(seconds)
        now[0] += 1e3

    return Pace(lambda: 0, lambda: True, lambda: False, lambda: now[0], sleep)
