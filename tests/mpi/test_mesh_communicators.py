"""Communicators of a mesh: ranks in its order, on plain communicators and ours."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.partitioning import Mesh


def _mesh(size: int, seed: int) -> Mesh:
    """Make a mesh of two axes in a random order, the same on every rank."""
    first = max(d for d in (1, 2) if size % d == 0)
    order = np.random.default_rng(seed).permutation(size)
    return Mesh({"a": first, "b": size // first}, order=order)


@pytest.mark.parametrize("kind", ["plain", "ours"])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_stand_in_the_order_of_the_mesh(
    comm: MPI.Intracomm, world: cr.Communicator, kind: str, seed: int
) -> None:
    given = comm if kind == "plain" else world
    mesh = _mesh(comm.size, seed)
    with_all = mesh.communicator(given)
    assert type(with_all) is (MPI.Intracomm if kind == "plain" else cr.Communicator)
    assert with_all.allgather(comm.rank) == mesh.ranks.reshape(-1).tolist()
    for axis in ("a", "b", ("b", "a")):
        group = mesh.communicator(given, axis)
        assert group.allgather(comm.rank) == mesh.group(axis, comm.rank)
        total = np.empty(1)
        group.Allreduce(np.array([float(comm.rank)]), total)
        assert total[0] == sum(mesh.group(axis, comm.rank))
        group.Free()
    with_all.Free()


@pytest.mark.parametrize("kind", ["plain", "ours"])
def test_a_cartesian_communicator_has_the_coordinates_of_the_mesh(
    comm: MPI.Intracomm, world: cr.Communicator, kind: str
) -> None:
    mesh = _mesh(comm.size, 5)
    for periods in (True, [False, True], {"b": True}):
        cart = mesh.cart(comm if kind == "plain" else world, periods)
        rings = [1, 1] if periods is True else [0, 1]
        assert cart.Get_topo() == (list(mesh.shape), rings, list(mesh.coordinates(comm.rank)))
        assert cart.rank == mesh.position(comm.rank)
        _, after = cart.Shift(1, 1)
        group = mesh.group("b", comm.rank)
        here = group.index(comm.rank)
        assert cart.allgather(comm.rank)[after] == group[(here + 1) % len(group)]
        cart.Free()


def test_bad_input_is_named_on_every_rank(comm: MPI.Intracomm) -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: Mesh({"a": comm.size + 1}).communicator(comm), f"{comm.size + 1} ranks"),
        (lambda: Mesh({"a": comm.size}).communicator(comm, "b"), "'b'"),
        (lambda: Mesh({"a": comm.size}).cart(comm, [True, True]), "2 periods"),
        (lambda: Mesh({"a": comm.size}).cart(comm, {"b": True}), "'b'"),
    ]
    for call, said in wrong:
        with pytest.raises(cr.UsageError, match=re.escape(said)):
            call()
    comm.Barrier()
