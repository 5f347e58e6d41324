"""Requests that a program drops: their buffers live until the library is through."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch import request
from closeranks.collectives.faults.final_meeting import FinalMeeting

World = cr.Communicator


@pytest.mark.parametrize("algorithm", ["auto", "native", "ring"])
def test_buffers_of_a_dropped_request_live_until_it_is_over(
    comm: MPI.Intracomm | None, world: World | None, algorithm: str
) -> None:
    if comm is None or world is None or comm.size == 1:
        return
    count = 1000 if algorithm != "auto" else 3
    world.Allreduce(np.ones(count), np.zeros(count), algorithm=algorithm)  # all is set up
    before = request.kept()
    comm.Barrier()
    if comm.rank:
        comm.recv(source=0)  # so that rank 0 cannot be through before this
        world.Iallreduce(np.ones(count), np.zeros(count), algorithm=algorithm)
    else:
        sent, received = np.ones(count), np.zeros(count)
        alive = weakref.ref(sent), weakref.ref(received)
        world.Iallreduce(sent, received, algorithm=algorithm)
        del sent, received
        gc.collect()
        assert all(one() is not None for one in alive)
        for rank in range(1, comm.size):
            comm.send(None, rank)
    total = np.zeros(count)
    world.Allreduce(np.ones(count), total, algorithm=algorithm)
    assert (total == comm.size).all()
    deadline = time.monotonic() + 20
    while not all(comm.allgather(request.kept() <= before)):
        assert time.monotonic() < deadline, "they are let go when it is over"
        world.Iallreduce(np.ones(1), np.zeros(1), algorithm="native").Wait()


def test_many_dropped_requests_spoil_no_sum(world: World | None) -> None:
    if world is None:
        return
    for algorithm in ("auto", "native"):
        for _ in range(50):
            world.Iallreduce(np.full(1000, 1.0 + world.rank), np.zeros(1000), algorithm=algorithm)
        gc.collect()
        total = np.zeros(1000)
        world.Allreduce(np.full(1000, 1.0 + world.rank), total)
        assert (total == world.size * (world.size + 1) / 2).all()


def test_a_farewell_that_is_left_keeps_what_it_hears_in(comm: MPI.Intracomm) -> None:
    if comm.size != 2:
        return
    request.let_go()
    traffic, before = comm.Dup(), request.kept()
    farewell = FinalMeeting(traffic, 1, given_up=False)
    if comm.rank == 0:
        assert not farewell.is_over()  # the other one has not come
        del farewell
        assert request.kept() == before + 2
        comm.Barrier()
    else:
        comm.Barrier()
        while not farewell.is_over():
            pass
    comm.Barrier()
    while request.kept() > before:
        comm.Iprobe()
        request.let_go()
    traffic.Free()
