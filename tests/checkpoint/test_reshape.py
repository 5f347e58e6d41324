"""What other ranks make of a state: copied, cut anew, padded, averaged, and gone on with."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from closeranks.checkpoint import PerRank, Shard
from closeranks.checkpoint.control.single_process import SingleProcessChannel
from closeranks.checkpoint.restore.recovery_search import Slots
from closeranks.checkpoint.restore.redistribution import Delivery
from closeranks.errors import CheckpointError, UsageError
from tests.checkpoint.ground import make


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A file system in memory, without leavings."""
    root = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="closeranks-test-"))
    yield root
    shutil.rmtree(root)


def deliver(memory: Path, states: list[Any], *wanted: Any) -> list[Any]:
    """Save what several ranks have; give what one rank gets for each tree that it wants."""
    root = Path(tempfile.mkdtemp(dir=memory))
    ground = make(root, [0] * len(states), 1, states=dict(enumerate(states)))
    recovery = ground.recovery()
    try:
        source = Slots(recovery, SingleProcessChannel())
        return [Delivery(source, SingleProcessChannel(), into).run() for into in wanted]
    finally:
        recovery.close()
        shutil.rmtree(root)


def padded(whole: np.ndarray[Any, Any], ranks: int, extra: int, beyond: float) -> list[Shard]:
    """Cut a table into equal parts, with something beyond its last row."""
    each = -(-len(whole) // ranks) + extra
    room = np.full((ranks * each, whole.shape[1]), beyond)
    room[: len(whole)] = whole
    return [Shard(room[r * each : (r + 1) * each].copy(), whole.shape, (r * each, 0), padded=True)
            for r in range(ranks)]  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(
    rows=some.integers(0, 30), old=some.integers(2, 5), new=some.integers(1, 6),
    extra=some.tuples(some.integers(0, 3), some.integers(0, 3)),
)  # fmt: skip
def test_another_padding(
    memory: Path, rows: int, old: int, new: int, extra: tuple[int, int]
) -> None:
    whole = np.arange(rows * 3.0).reshape(rows, 3)
    states = [{"table": part} for part in padded(whole, old, extra[0], -1)]
    wanted = [{"table": part} for part in padded(np.zeros((rows, 3)), new, extra[1], -7)]
    found = deliver(memory, states, *wanted)
    right = padded(whole, new, extra[1], -7)  # where there is nothing, what was there stays
    for one, other in zip(found, right, strict=True):
        np.testing.assert_array_equal(one["table"].array, other.array)


def test_padding_on_every_axis(memory: Path) -> None:
    whole = np.arange(35.0).reshape(5, 7)
    room = np.full((6, 8), -1.0)
    room[:5, :7] = whole
    corners = [(row, column) for row in (0, 3) for column in (0, 4)]
    states = [{"a": Shard(room[r : r + 3, c : c + 4].copy(), (5, 7), (r, c), padded=True)}
              for r, c in corners]  # fmt: skip
    into = {"a": Shard(np.full((4, 9), -7.0), (5, 7), (2, 1), padded=True)}
    (found,) = deliver(memory, states, into)
    right = np.full((4, 9), -7.0)
    right[:3, :6] = whole[2:, 1:]
    np.testing.assert_array_equal(found["a"].array, right)


def test_nothing_is_cut_off_without_a_word(memory: Path) -> None:
    whole = np.ones((10, 3))
    states = [{"table": part} for part in padded(whole, 4, 0, -1)]
    for rows in (9, 11, 12):
        into = {"table": Shard(np.zeros((12, 3)), (rows, 3), (0, 0), padded=True)}
        with pytest.raises(CheckpointError, match=rf"wanted as .* of \({rows}, 3\), saved as"):
            deliver(memory, states, into)
    with pytest.raises(UsageError, match="or padded=True"):
        Shard(np.zeros((12, 3)), (10, 3), (0, 0))
    for shape, offset in (((10, 3), (-1, 0)), ((-10, 3), (0, 0))):
        with pytest.raises(UsageError, match="inside the whole"):
            Shard(np.zeros((12, 3)), shape, offset, padded=True)


def test_alike_averaged_concatenated_and_summed(memory: Path) -> None:
    old = 4
    states: list[dict[str, Any]] = [
        {
            "alike": np.arange(5.0),
            "mean": PerRank(np.full(3, float(rank))),
            "rows": PerRank(np.arange(2 + rank) + 10 * rank),
            "residual": PerRank(np.full(3, 1.0 + rank)),
            "seen": PerRank(100 + rank),
        }
        for rank in range(old)
    ]
    new = 3

    def part(at: int) -> PerRank:  # of which its second argument would be the number, on ranks
        return PerRank(lambda values, _: np.array_split(np.concatenate(values), new)[at])

    into = [
        {
            "alike": np.zeros(5),
            "mean": PerRank(lambda values, _: np.mean(values, axis=0)),
            "rows": part(at),
            "residual": PerRank(lambda values, _: sum(values) / new),
            "seen": PerRank(lambda values, _: sum(values) // new),
        }
        for at in range(new)
    ]
    found = deliver(memory, states, *into)
    rows = np.concatenate([state["rows"].value for state in states])
    np.testing.assert_array_equal(np.concatenate([one["rows"] for one in found]), rows)
    for one in found:
        np.testing.assert_array_equal(one["alike"], np.arange(5.0))
        np.testing.assert_array_equal(one["mean"], np.full(3, 1.5))
        assert one["seen"] == 406 // new
    np.testing.assert_array_equal(sum(one["residual"] for one in found), np.full(3, 10.0))


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_a_generator_goes_on_bit_for_bit(memory: Path, kind: str) -> None:
    made = [np.random.Generator(getattr(np.random, kind)(rank)) for rank in range(3)]
    for rng in made:
        rng.random(7)
        rng.integers(9, size=3, dtype=np.uint32)  # which leaves half a word for the next call
    states = [{"rng": PerRank(rng.bit_generator.state)} for rng in made]
    second = PerRank(lambda values, _: values[1])
    into = {"rng": _each(states[1]["rng"].value, second)}
    (found,) = deliver(memory, states, into)
    again = np.random.Generator(getattr(np.random, kind)())
    again.bit_generator.state = found["rng"]
    for draw in ("random", "standard_normal"):
        np.testing.assert_array_equal(getattr(again, draw)(99), getattr(made[1], draw)(99))
    assert again.integers(9, dtype=np.uint32) == made[1].integers(9, dtype=np.uint32)


def _each(tree: Any, leaf: Any) -> Any:
    """Put something in the place of every entry of a tree."""
    return {k: _each(v, leaf) for k, v in tree.items()} if isinstance(tree, dict) else leaf
