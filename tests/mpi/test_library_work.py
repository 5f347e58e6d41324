"""Who waits in a call of ours lets the library serve the others, who are not there yet.

MPICH moves one-sided calls and long messages only in calls that it makes progress in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.builders.catalogue import algorithms
from tests.mpi.expected import cases
from tests.mpi.served import Served
from tests.mpi.test_communicator import _served

World = cr.Communicator
METHODS = [case.method for case in cases(0, 1, 0)]


@contextmanager
def serving(world: World) -> Iterator[Served]:
    """Let the first rank serve the others, and see in the end that it has."""
    served = Served(MPI.Intracomm(world))
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


def _nothing(rank: int) -> None:
    """All come at once."""


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
            needs = served.count, _nothing, served.count, served.send
            for need, call in zip(needs, _calls(fresh, method, form, name), strict=True):
                need(0)
                call()

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
        for need in (served.count, _nothing, served.count, served.send):
            need(0)
            OTHERS[name](fresh)
