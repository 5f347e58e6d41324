"""Who waits in a call of ours lets the library serve the others, who are not there yet.

MPICH moves one-sided calls and long messages only in calls that it makes progress in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.catalogue import algorithms
from tests.mpi.expected import cases
from tests.mpi.test_communicator import _served

World = cr.Communicator
#: Long enough for the first rank to wait in the call.
_LATE_S = 0.0005
#: Long enough for a message that its receiver has to ask for.
_LONG = 1 << 15
METHODS = [case.method for case in cases(0, 1, 0)]


class Served:
    """What the first rank serves: its window, and a message that it sends to each."""

    def __init__(self, world: World) -> None:
        self.rank, self.size = world.rank, world.size
        self.comm = MPI.Intracomm(world).Dup()
        self.counter = np.zeros(1)
        self.window = MPI.Win.Create(self.counter, comm=self.comm)
        self.turns = 0

    def plain(self, call: Callable[[], object]) -> None:
        """Make a call that all come to at once."""
        call()

    def late(self, call: Callable[[], object]) -> None:
        """Make a call; all but the first rank need that one to serve them first."""
        self.turns += 1
        if self.rank:
            time.sleep(_LATE_S)
            self._count()
        call()

    def late_for_a_message(self, call: Callable[[], object]) -> None:
        """Make a call while the first rank has sent what the others take first."""
        data = np.full(_LONG, 7.0 if self.rank == 0 else 0.0)
        others = range(1, self.size) if self.rank == 0 else ()
        sent = [self.comm.Isend(data, other) for other in others]
        if self.rank:
            time.sleep(_LATE_S)
            self.comm.Recv(data, 0)
            assert (data == 7).all()
        call()
        MPI.Request.Waitall(sent)

    def _count(self) -> None:
        self.window.Lock(0, MPI.LOCK_SHARED)
        self.window.Fetch_and_op(np.ones(1), np.zeros(1), 0, 0, MPI.SUM)
        self.window.Unlock(0)

    def close(self) -> None:
        self.comm.Barrier()
        self.window.Lock(self.rank, MPI.LOCK_SHARED)
        assert self.counter[0] == (0 if self.rank else self.turns * (self.size - 1))
        self.window.Unlock(self.rank)
        self.window.Free()
        self.comm.Free()


@contextmanager
def serving(world: World) -> Iterator[Served]:
    served = Served(world)
    yield served
    served.close()


def _calls(comm: World, method: str, form: str, name: str) -> Iterator[Callable[[], object]]:
    """Calls of one operation by one algorithm; the last rank is the root."""
    case = next(one for one in cases(comm.rank, comm.size, comm.size - 1) if one.method == method)
    if form == "blocking":
        call = partial(getattr(comm, method), *case.arguments, algorithm=name)
        yield from [call] * 4
    elif form == "I":
        begin = partial(getattr(comm, f"I{method.lower()}"), *case.arguments, algorithm=name)
        yield from [lambda: begin().Wait()] * 4
    else:
        operation = getattr(comm, f"{method}_init")(*case.arguments, algorithm=name)
        yield from [partial(_run, [operation])] * 4
        operation.Free()


def _run(operations: list[MPI.Prequest]) -> None:
    MPI.Prequest.Startall(operations)
    MPI.Request.Waitall(operations)


@pytest.mark.parametrize("form", ["blocking", "I", "init"])
@pytest.mark.parametrize("method", METHODS)
def test_who_waits_in_a_collective_serves_the_others(world: World, method: str, form: str) -> None:
    if world.size in (1, 3):
        return
    with world.Dup() as fresh, serving(fresh) as served:

        def every(name: str) -> None:
            ways = served.late, served.plain, served.late, served.late_for_a_message
            for way, call in zip(ways, _calls(fresh, method, form, name), strict=True):
                way(call)

        for name in ("auto", "native", *algorithms(method.lower())):
            _served(partial(every, name))


OTHERS: dict[str, Callable[[World], object]] = {
    "Barrier": World.Barrier,
    "Ibarrier": lambda world: world.Ibarrier().wait(),
    "allreduce": lambda world: world.allreduce([world.rank]),
    "alltoall": lambda world: world.alltoall([None] * world.size),
    "bcast": lambda world: world.bcast(None, root=world.size - 1),
    "Dup": lambda world: world.Dup().Free(),
    "Split": lambda world: world.Split(0).Free(),
    "empty": lambda world: world.empty(1000),
    "empty_alltoall": lambda world: world.Alltoall(*np.ones((2, 64 * world.size))),
    "init": lambda world: cr.init(MPI.Intracomm(world)).Free(),
    "discover": lambda world: cr.discover(MPI.Intracomm(world)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_who_waits_in_other_calls_serves_the_others(world: World, name: str) -> None:
    if world.size in (1, 3):
        return
    with world.Dup() as fresh, serving(fresh) as served:
        for _ in range(3):
            served.late(partial(OTHERS[name], fresh))
            served.late_for_a_message(partial(OTHERS[name], fresh))
