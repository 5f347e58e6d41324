"""Hierarchical plans on real ranks, on machines that are made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import closeranks as cr
from closeranks.collectives.builders.catalogue import HIERARCHICAL
from closeranks.comms.topology.topology import Topology
from tests.mpi.expected import cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpi4py import MPI

#: Node of each rank.
MAPS = {3: ([0, 0, 1], [0, 1, 0]), 4: ([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0])}


@pytest.mark.timeout(120)
def test_right_on_made_up_nodes(comm: MPI.Intracomm) -> None:
    if comm.size not in MAPS:
        pytest.skip("nodes of several ranks need at least 3")
    for node in MAPS[comm.size]:
        topology = Topology.from_groups(("node", "rank"), [node, list(range(comm.size))])
        with cr.init(comm, topology=topology) as world:
            called = {name for root in range(world.size) for name in _call_all(world, root)}
            world.Barrier(algorithm="hierarchical")
        assert called | {"barrier"} == set(HIERARCHICAL)


def _call_all(world: cr.Communicator, root: int) -> Iterator[str]:
    """Make every call with every hierarchical algorithm; give the operations called."""
    for index, case in enumerate(cases(world.rank, world.size, root)):
        operation = case.method.lower()
        for algorithm in HIERARCHICAL.get(operation, ()):
            fresh = cases(world.rank, world.size, root)[index]
            getattr(world, fresh.method)(*fresh.arguments, algorithm=algorithm.name)
            if fresh.result is not None:
                np.testing.assert_array_equal(fresh.out, fresh.result, algorithm.name)
            yield operation
