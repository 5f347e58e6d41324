"""Waiting for a late rank, on real ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.comms import wait as waiting
from closeranks.comms.discovery.node_hardware import cores_of
from closeranks.comms.wait import settle
from tests.collectives.shape.ring import ring
from tests.mpi.ground import bind, opened, run

LATE_S = 0.4


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    yield
    settle(1, 1)


def test_a_late_rank_gets_the_core_of_those_who_wait(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    with opened(comm) as world:
        output = np.zeros(8, "f4")
        bound = bind(ring(comm.size, 8), world, np.ones(8, "f4"), output)
        settle(10**6, 1)  # as if ranks outnumbered the cores
        run(bound)
        comm.Barrier()
        if comm.rank == 0:
            time.sleep(LATE_S)
        began, before = time.monotonic(), time.process_time()
        run(bound)
        waited_s, used_s = time.monotonic() - began, time.process_time() - before
        assert (output == comm.size).all()
        if comm.rank != 0:
            assert waited_s > LATE_S / 2
            assert used_s < waited_s / 2


def test_a_world_counts_the_ranks_of_its_node(comm: MPI.Intracomm) -> None:
    with opened(comm):
        crowded = comm.size > cores_of(comm)
        assert waiting.is_crowded() == crowded


def test_a_part_of_the_ranks_shares_the_cores_with_the_others(comm: MPI.Intracomm) -> None:
    ours = cr.init(comm)
    settle(10**6, 1)  # as if all ranks outnumbered the cores
    part = ours.Split(comm.rank % 2)
    part.Barrier(algorithm="dissemination")  # which opens its world
    assert waiting.is_crowded()
    part.Free()
    ours.Free()


def test_ranks_bound_to_cores_of_their_own_are_not_crowded(comm: MPI.Intracomm) -> None:
    mine = sorted(os.sched_getaffinity(0))
    everybody = sorted(set().union(*comm.allgather(mine)))
    if comm.size > len(mine):
        return
    try:
        os.sched_setaffinity(0, {mine[comm.rank]})
        assert cores_of(comm) == min(comm.size, len(everybody))
        with opened(comm):
            assert not waiting.is_crowded()
        os.sched_setaffinity(0, {mine[0]})
        assert cores_of(comm) == 1
        with opened(comm):
            assert waiting.is_crowded() == (comm.size > 1)
            assert waiting.crowding() == comm.size
    finally:
        os.sched_setaffinity(0, mine)
