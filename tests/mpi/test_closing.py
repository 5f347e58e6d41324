"""How a communicator ends: with calls in flight, and at the second try."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.dispatch.persistent_starts import Starts
from closeranks.collectives.engine import init_state
from closeranks.collectives.plans import message_tags
from closeranks.comms.mpi import ulfm


class _Alarm(Exception):
    pass


def _ring(*_: object) -> None:
    raise _Alarm


def test_who_was_late_is_met_at_the_second_try(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        return
    monkeypatch.setattr(init_state, "CLOSING_S", 0.3)
    world = cr.init(comm, timeout_s=0.3)
    for _ in range(2 if comm.rank else 0):
        with pytest.raises(cr.PeerLate, match="close"):
            world.close()
    comm.Barrier()
    monkeypatch.setattr(init_state, "CLOSING_S", 5.0)
    world.close()
    assert world == MPI.COMM_NULL


def test_an_interrupted_end_is_taken_up_again(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    world = cr.init(comm)
    with world.Dup() as child:
        if comm.rank:
            before = signal.signal(signal.SIGALRM, _ring)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(_Alarm):
                child.close()
            signal.signal(signal.SIGALRM, before)
        comm.Barrier()
    assert child == MPI.COMM_NULL
    world.close()


@pytest.mark.parametrize("algorithm", ["ring", "shared"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_call_in_flight_ends_before_its_communicator(
    world: cr.Communicator, algorithm: str, waits: bool
) -> None:
    if world.size == 1:
        return
    child = world.Dup()
    x, y = np.ones(1 << 20), np.zeros(1 << 20)
    for _ in range(2):
        child.Allreduce(x, y, algorithm=algorithm)
    y[:] = 0
    requests = [child.Iallreduce(x, y, algorithm=algorithm)]
    if waits:
        child.Free()
        requests.pop().Wait()
    else:
        requests.clear()
        child.close()
    assert (y == world.size).all()


def test_the_first_of_a_family_lets_all_of_it_finish(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    x, y = np.ones(1 << 20), np.zeros(1 << 20)
    with cr.init(comm) as world:
        half = world.Split(0)
        request = half.Iallreduce(x, y, algorithm="ring")
    request.Wait()
    assert (y == comm.size).all()


@pytest.mark.parametrize("algorithm", ["ring", "shared"])
def test_a_call_that_is_given_up_in_flight_says_so(comm: MPI.Intracomm, algorithm: str) -> None:
    if comm.size == 1:
        return
    world = cr.init(comm)
    x, y = np.ones(1000), np.zeros(1000)
    world.Allreduce(x, y, algorithm=algorithm)
    comm.Barrier()
    if comm.rank == 0:
        request = world.Iallreduce(x, y, algorithm=algorithm)
        world.abandon()
        with pytest.raises(cr.Revoked):
            request.Wait()
    comm.Barrier()
    world.abandon()


@pytest.mark.parametrize("knows", [False, True])
def test_who_gives_up_while_the_others_close_is_met(comm: MPI.Intracomm, *, knows: bool) -> None:
    with cr.init(comm) as world:
        child = world.Dup()
        child.Barrier(algorithm="dissemination")
        carrying = child._service.world
        if comm.rank == comm.size - 1:
            time.sleep(0.3)  # the others are in `Free`
            carrying.revoke()
        elif not knows:
            carrying._word = memoryview(bytearray(8)).cast("q")  # as on another node
        child.Free()
        assert carrying.revoked
        again = world.Dup()
        assert again.allreduce(1) == comm.size


class _Mine(MPI.Intracomm):
    """A communicator of a program that duplicates what it is made of, as a library does."""

    def __new__(cls, comm: MPI.Intracomm) -> _Mine:
        return super().__new__(cls, comm.Dup())


@pytest.mark.parametrize("algorithm", ["auto", "dissemination"])
def test_a_program_may_free_it_by_another_handle(comm: MPI.Intracomm, algorithm: str) -> None:
    with cr.init(comm) as world:
        for _ in range(3):
            mine = _Mine(world)
            mine.Barrier()
            mine.Free()
        child = world.Dup()
        grandchild = child.Dup()
        child.Barrier(algorithm=algorithm)
        MPI.Intracomm(child).Free()
        assert child == MPI.COMM_NULL
        with pytest.raises(cr.Revoked, match="closed"):
            child.Barrier()
        child.close()
        grandchild.Barrier(algorithm=algorithm)
        grandchild.Free()
        assert not world.membership.lineage.children()
        world.Barrier(algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["auto", "dissemination"])
def test_a_program_may_free_the_first_by_another_handle(
    comm: MPI.Intracomm, algorithm: str
) -> None:
    world = cr.init(comm)
    child = world.Dup()
    for one in (world, child):
        one.Barrier(algorithm=algorithm)
    MPI.Intracomm(world).Free()
    with pytest.raises(cr.Revoked, match="closed"):
        world.Barrier()
    child.Barrier(algorithm=algorithm)
    child.Free()
    world.close()
    assert world == MPI.COMM_NULL


def test_ours_may_stand_in_the_place_of_mpis_own(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, world = cr.init(MPI.COMM_SELF), cr.init(comm)
    with monkeypatch.context() as patch:
        patch.setattr(MPI, "COMM_WORLD", world)
        patch.setattr(MPI, "COMM_SELF", own)
        heard = Starts()
        assert type(heard._comm) is MPI.Intracomm
        made = world.Split(0)
        with cr.init(made) as again:
            assert again.allreduce(1) == comm.size
        made.Free()
        world.close()
        own.close()
        assert not ulfm.listen()
        assert not heard.look()
        assert message_tags.window() > 1
    heard._comm.Free()


@pytest.mark.parametrize("drops", [True, False])
def test_what_the_library_has_under_way_ends_before_its_communicator(
    comm: MPI.Intracomm, *, drops: bool
) -> None:
    with cr.init(comm) as world:
        for _ in range(3):
            child = world.Split(0, -comm.rank)
            x, found = np.arange(1024), np.zeros((20, 1024), int)
            requests = [child.Ireduce(x, y, algorithm="native") for y in found]
            if drops:
                requests.clear()
            under_way = child._service.outstanding
            if comm.rank == 0:
                time.sleep(0.05)
            child.Free()
            assert under_way.are_over()
            MPI.Request.Waitall(requests)
            is_root = comm.rank == comm.size - 1
            assert (found == comm.size * x).all() if is_root else not found.any()
