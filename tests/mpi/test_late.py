"""Deadlines: every survivor names exactly the ranks that have not arrived."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.comms.mpi import ulfm
from closeranks.comms.wait import Deadline, wait

LIMIT_S = 0.25
X = np.arange(3000.0)

pytestmark = pytest.mark.skipif(ulfm.is_on(), reason="tests/faults has those")


def allreduce(algorithm: str) -> Callable[[cr.Communicator], object]:
    return lambda world: world.Allreduce(X, np.empty_like(X), algorithm=algorithm)


CALLS: dict[str, Callable[[cr.Communicator], object]] = {
    "auto": allreduce("auto"),
    "native": allreduce("native"),
    "ring": allreduce("ring"),
    "shared": allreduce("shared"),
    "request": lambda world: world.Iallreduce(X, np.empty_like(X)).Wait(),
    "barrier": lambda world: world.Barrier(),
    "alltoall": lambda world: world.Alltoall(np.ones(64 * world.size), np.ones(64 * world.size)),
}


def finish(comm: MPI.Intracomm, world: Any) -> None:
    """Let ranks part that have given each other up."""
    comm.Barrier()
    world.abandon()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("warm", [False, True])
def test_all_survivors_name_those_who_are_late(comm: MPI.Intracomm, call: str, warm: bool) -> None:
    if comm.size < 2:
        pytest.skip("nobody to wait for")
    late = tuple(sorted({comm.size - 1, comm.size // 2}))
    world = cr.init(comm, timeout_s=LIMIT_S)
    comm.Barrier()
    if comm.rank in late:  # it hears of it although it does something else
        assert wait(lambda: world.membership.world.revoked, deadline=Deadline(30), polite=True)
    with pytest.raises(cr.PeerLate) as caught:
        CALLS[call](world)
    assert caught.value.ranks == late
    assert caught.value.waited_s < LIMIT_S + 1
    with pytest.raises(cr.Revoked):
        CALLS[call](world)
    finish(comm, world)


def test_who_is_done_and_computes_is_not_late(comm: MPI.Intracomm) -> None:
    """The root of a short broadcast ends first; it answers while it does something else."""
    if comm.size < 3:
        pytest.skip("needs 3 ranks")
    world, late = cr.init(comm, timeout_s=LIMIT_S), comm.size - 1
    comm.Barrier()
    if comm.rank == 0:
        world.Bcast(X[:4].copy(), algorithm="binomial")
        time.sleep(LIMIT_S + 0.5)
    elif comm.rank == late:
        time.sleep(LIMIT_S + 0.5)
    else:
        world.Bcast(np.empty(4), algorithm="binomial")
        with pytest.raises(cr.PeerLate) as caught:
            world.Barrier()
        assert caught.value.ranks == (0, late)
        assert caught.value.waited_s < LIMIT_S + 0.4, "it had to wait for an answer"
    finish(comm, world)


def test_arrays_of_a_call_that_was_given_up_stay_while_the_library_has_them(
    comm: MPI.Intracomm,
) -> None:
    """A rank that was stopped in it may still get what they hold."""
    if comm.size < 2:
        pytest.skip("nobody to wait for")
    world, late = cr.init(comm, timeout_s=LIMIT_S), comm.size - 1
    comm.Barrier()
    kept: list[weakref.ref[Any]] = []

    def call() -> None:
        given, taken = np.ones(100_000), np.empty(100_000)
        kept.extend((weakref.ref(given), weakref.ref(taken)))
        world.Allreduce(given, taken, algorithm="native")

    if comm.rank == late:
        assert wait(lambda: world.membership.world.revoked, deadline=Deadline(30), polite=True)
    else:
        with pytest.raises(cr.PeerLate):
            call()
        gc.collect()
        assert all(one() is not None for one in kept), "nobody has taken part: it is under way"
    finish(comm, world)


def test_a_late_rank_hears_of_it_on_a_child_too(comm: MPI.Intracomm) -> None:
    if comm.size < 2:
        pytest.skip("nobody to wait for")
    world, last = cr.init(comm, timeout_s=LIMIT_S), comm.size - 1
    child = world.Split(0, comm.size - comm.rank)  # where it has another rank
    comm.Barrier()
    if comm.rank == last:
        assert wait(lambda: world.membership.world.revoked, deadline=Deadline(30), polite=True)
    with pytest.raises(cr.PeerLate) as caught:
        (child if comm.rank == last else world).Barrier()
    assert caught.value.ranks == ((0,) if comm.rank == last else (last,))
    finish(comm, world)


def _once(operation: Any) -> None:
    """Start it, and wait."""
    operation.start()
    operation.wait()


@pytest.mark.parametrize("algorithm", ["native", "ring", "shared"])
def test_a_deadline_holds_for_what_was_made_before_it(comm: MPI.Intracomm, algorithm: str) -> None:
    if comm.size < 2:
        pytest.skip("nobody to wait for")
    world, last = cr.init(comm), comm.size - 1
    given, taken = np.ones(4), np.empty(4)
    operation = world.Allreduce_init(given, taken, algorithm=algorithm)
    for limit_s in (None, 30.0, None):
        with world.using(timeout_s=limit_s):
            operation.start()
            with pytest.raises(cr.UsageError, match="started twice"):
                operation.start()
        operation.wait()
        assert taken.tolist() == [comm.size] * 4
        taken[:] = 0
    comm.Barrier()
    with world.using(timeout_s=LIMIT_S):
        if comm.rank == last:
            assert wait(lambda: world.membership.world.revoked, deadline=Deadline(30), polite=True)
        with pytest.raises(cr.PeerLate) as caught:
            _once(operation)
    assert caught.value.ranks == (last,)
    finish(comm, world)
