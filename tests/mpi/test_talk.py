"""What ranks say to each other of checkpoints arrives, however it goes."""

from __future__ import annotations

import numpy as np
import pytest

import closeranks as cr
from closeranks.checkpoint.control import control_channel
from closeranks.checkpoint.control.control_channel import ControlChannel
from closeranks.errors import CheckpointError

#: Bytes that the library is given at most: all goes by it, or nothing does.
MOST = [1 << 30, 8]


@pytest.mark.parametrize("most", MOST)
def test_all_hear_all(world: cr.Communicator, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(control_channel, "_MOST", most)
    said, rank, size = ControlChannel(world), world.rank, world.size
    assert said.everything(["x" * 50 * rank, rank]) == [["x" * 50 * of, of] for of in range(size)]
    rows = said.gather(np.arange(3) + rank)
    assert np.array_equal(rows, [np.arange(3) + of for of in range(size)])
    assert said.gather([]).shape == (size, 0)
    least = said.least([rank, -rank, 7] * 4)
    assert least.tolist() == [0, 1 - size, 7] * 4
    assert said.least([]).size == 0
    said.close()


@pytest.mark.parametrize("exchange", ["least", "gather"])
def test_numbers_come_with_what_one_has_met(world: cr.Communicator, exchange: str) -> None:
    said, rank = ControlChannel(world), world.rank
    found = said.told("save", lambda: [rank, 5], 2, getattr(said, exchange))
    rows = [[of, 5] for of in range(world.size)]
    assert found.tolist() == (rows[0] if exchange == "least" else rows)

    def fails() -> list[int]:
        if rank == world.size - 1:
            raise ValueError("no number")
        return [rank]

    with pytest.raises(CheckpointError, match=f"rank {world.size - 1}: ValueError: no number"):
        said.told("save", fails, 1, getattr(said, exchange))
    said.close()
