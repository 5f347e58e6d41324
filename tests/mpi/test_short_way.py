"""Calls that go straight to the library: right, counted once, errors explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.problem import OPERATIONS

World = cr.Communicator
COUNT = 6
METHODS = [name.capitalize() for name in OPERATIONS]


@pytest.fixture
def known(world: World | None) -> Iterator[World | None]:
    """A duplicate where calls of COUNT elements a block are known to be the library's."""
    if world is None:
        yield None
        return
    duplicate = world.Dup()
    for name in OPERATIONS:
        for nbytes in (0, 8 * COUNT, 8 * COUNT * world.size):
            duplicate._quick[name][nbytes] = 0
    yield duplicate
    duplicate.Free()


def arguments(comm: World, method: str, step: int = 1) -> tuple[Any, ...]:
    """Arguments of an operation; ``step`` 2 leaves gaps in every buffer."""
    size = comm.size
    own = np.repeat(np.arange(COUNT) + comm.rank, step)[::step]
    whole = np.repeat(np.arange(COUNT * size) * (comm.rank + 1), step)[::step]
    block, blocks = np.zeros(COUNT * step, int)[::step], np.zeros(COUNT * size * step, int)[::step]
    counts = [COUNT] * size
    known: dict[str, tuple[Any, ...]] = {
        "Barrier": (),
        "Bcast": (own,),
        "Reduce_scatter_block": (whole, block),
        "Reduce_scatter": (whole, block, counts),
        "Allgather": (own, blocks),
        "Allgatherv": (own, [blocks, counts]),
        "Gather": (own, blocks),
        "Gatherv": (own, [blocks, counts]),
        "Scatter": (whole, block),
        "Scatterv": ([whole, counts], block),
        "Alltoall": (whole, blocks),
        "Alltoallv": ([whole, counts], [blocks, counts]),
    }
    return known.get(method, (own, block))


def result(given: tuple[Any, ...]) -> list[int]:
    """What a call left in its last buffer."""
    buffers = [part[0] if isinstance(part, list) and len(part) == 2 else part for part in given]
    arrays = [buffer for buffer in buffers if isinstance(buffer, np.ndarray)]
    return arrays[-1].tolist() if arrays else []


@pytest.mark.parametrize("method", METHODS)
def test_it_does_what_the_library_does(known: World, method: str) -> None:
    ours, theirs = arguments(known, method), arguments(known, method)
    getattr(known, method)(*ours)
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert known.statistics().calls == {method.lower(): 1}
    assert sum(known._quick[method.lower()].values()) == 1


@pytest.mark.parametrize("method", METHODS)
def test_gaps_on_one_rank_meet_the_others(known: World, method: str) -> None:
    ours = arguments(known, method, step=2 if known.rank == 0 else 1)
    theirs = arguments(known, method)
    getattr(known, method)(*ours)
    getattr(MPI.Intracomm, method)(known, *theirs)
    assert result(ours) == result(theirs)
    assert known.statistics().calls == {method.lower(): 1}


def test_an_op_that_keeps_order_meets_the_others(known: World) -> None:
    later = MPI.Op.Create(lambda _first, _second, _type: None, commute=False)
    step = 2 if known.rank == 0 else 1
    x, y = np.full(COUNT * step, known.rank)[::step], np.zeros(COUNT * step, int)[::step]
    known.Allreduce(x, y, op=later)
    assert set(y.tolist()) == {known.size - 1}
    later.Free()


@pytest.mark.parametrize("method", ["Allgatherv", "Alltoallv"])
def test_blocks_beyond_the_buffer_are_refused(known: World, method: str) -> None:
    *rest, (buffer, counts) = arguments(known, method)
    with pytest.raises(cr.UsageError, match=method):
        getattr(known, method)(*rest, [buffer[:-1], counts])
    assert not known.statistics().calls


@pytest.mark.parametrize("method", ["Gatherv", "Scatterv", "Reduce_scatter"])
def test_a_root_that_disagrees_with_itself_is_refused(known: World, method: str) -> None:
    if known.size > 1:
        return  # the others would wait
    first, second, *rest = arguments(known, method)
    wrong = (first, second[:-1]) if method != "Gatherv" else (first[:-1], second)
    with pytest.raises(cr.UsageError, match=method):
        getattr(known, method)(*wrong, *rest)
