"""When a rank of the demo dies: in the midst of its sums, and never alone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from closeranks.jobs import demo


class _Killed(Exception):
    pass


def _sums(monkeypatch: pytest.MonkeyPatch, epochs: int, rank: int, size: int) -> int:
    """Train as a rank whose others add nothing; gives how many sums it makes."""
    made = list[int]()

    def over_survivors(comm: Any, make: demo.Make) -> demo.Array:
        made.append(comm.rank)
        return make(0, 1)

    def kill(process: int, number: int) -> None:
        assert (process, number) == (os.getpid(), signal.SIGKILL)
        raise _Killed

    monkeypatch.setattr("os.kill", kill)
    monkeypatch.setattr(demo, "_over_survivors", over_survivors)
    monkeypatch.setattr(demo, "_compare", lambda *_: 0.0)
    explained = SimpleNamespace(algorithm="ring", bytes_per_level={})
    comm: Any = SimpleNamespace(rank=rank, size=size, explain=lambda *_: explained)
    with suppress(_Killed):
        demo._train(comm, epochs, over_survivors)
    return len(made)


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_the_last_rank_dies_half_way(monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    total = epochs * len(list(demo.batches(len(demo.load(np).train_y), demo.BATCH, 0)))
    assert _sums(monkeypatch, epochs, 2, 3) == total // 2
    assert _sums(monkeypatch, epochs, 1, 3) == total


def test_a_rank_that_is_alone_does_not_die(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _sums(monkeypatch, 1, 0, 1) > 1
    assert "no rank dies: it takes two" in capsys.readouterr().out


def test_figures_are_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_compare", lambda *_: 0.0)
    explained = SimpleNamespace(algorithm="ring", bytes_per_level={"node": 30, "rank": 50})
    comm: Any = SimpleNamespace(rank=1, size=2, explain=lambda *_: explained)
    figures = demo._train(comm, 1, lambda _comm, make: make(0, 1))
    assert (figures["bytes_node"], figures["bytes_rank"]) == (30, 50)
    assert not any(isinstance(value, (dict, list)) for value in figures.values())
