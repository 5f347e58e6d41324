"""Reductions of objects are mpi4py's, where ranks may die as elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives import objects

OPS = [MPI.SUM, MPI.MAX, lambda one, other: [*one, *other]]


@pytest.mark.parametrize("op", OPS, ids=["sum", "max", "own"])
@pytest.mark.parametrize("careful", [False, True])
def test_they_are_reduced_in_the_order_of_the_ranks(
    world: cr.Communicator,
    monkeypatch: pytest.MonkeyPatch,
    op: Callable[[Any, Any], Any],
    careful: bool,
) -> None:
    monkeypatch.setattr(objects, "_CAREFUL", careful)
    rank, size = world.rank, world.size
    given = [rank, str(rank)]
    every = [[other, str(other)] for other in range(size)]
    folded = [every[0]]
    for one in every[1:]:
        folded.append(op(folded[-1], one))
    assert world.allreduce(given, op) == folded[-1]
    assert world.scan(given, op) == folded[rank]
    assert world.exscan(given, op) == (folded[rank - 1] if rank else None)
    for root in range(size):
        assert world.reduce(given, op, root) == (folded[-1] if rank == root else None)
