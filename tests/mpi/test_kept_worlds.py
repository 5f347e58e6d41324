"""Communicators of the same ranks have one world after the other, if all ranks have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.communicator import kept_worlds
from closeranks.collectives.engine.epoch_world import World
from closeranks.comms.shm import shared_folder


def mapped() -> int:
    """Count the mappings of this process in the folder of shared files."""
    folder = str(shared_folder.folder())
    return sum(folder in line for line in Path("/proc/self/maps").read_text().splitlines())


def serve(made: cr.Communicator, algorithm: str = "ring") -> World:
    """Run a plan, which opens the world."""
    for n in (3, 4000):
        output = np.zeros(n, "f8")
        made.Allreduce(np.full(n, 1.0 + made.rank), output, algorithm=algorithm)
        assert (output == sum(range(1, 1 + made.size))).all()
    return made.membership.world


def test_the_next_communicator_of_the_same_ranks_has_the_same_world(
    world: cr.Communicator,
) -> None:
    seen, maps = list[World](), list[int]()
    for algorithm in ("ring", "shared", "native", "ring", "shared"):
        made = world.Split(0, world.rank)
        seen.append(serve(made, algorithm if made.size > 1 else "auto"))
        memory = seen[0].node_memory if made.size > 1 else None
        request = made.Iallreduce(MPI.IN_PLACE, np.ones(5000))
        request.Wait()
        made.Free()
        assert world.membership.world.kept == [seen[0]]
        assert seen[-1].comm == MPI.COMM_NULL
        assert memory is None or memory is seen[0].node_memory
        maps.append(mapped())
    assert set(seen) == {seen[0]}
    other = world.Split(0, -world.rank)  # the other way round
    assert (serve(other) is seen[0]) == (world.size == 1)
    other.Free()
    assert len(set(maps[1:])) == 1, "nothing is mapped anew"
    assert not seen[0].closed


def test_what_a_communicator_has_owned_ends_with_it(world: cr.Communicator) -> None:
    made = world.Dup()
    output = np.zeros(3)
    begun = made.Allreduce_init(np.ones(3), output)
    begun.Start()
    begun.Wait()
    kept = serve(made)
    owned = len(kept._owned)
    own = kept.own(made.membership.service.plain.Dup())
    made.Free()
    assert own == MPI.COMM_NULL
    assert len(kept._owned) <= owned
    made = world.Dup()
    assert serve(made) is kept
    made.Free()


def test_few_worlds_are_kept_and_all_end_with_the_first(comm: MPI.Intracomm) -> None:
    closed = list[World]()
    with cr.init(comm) as world:
        first = world.membership.world
        parts = [world.Dup() for _ in range(kept_worlds.MOST + 2)]
        worlds = [serve(part) for part in parts]
        for part in parts:
            part.Free()
        assert first.kept == worlds[2:]
        assert [one.closed for one in worlds] == [True] * 2 + [False] * kept_worlds.MOST
        closed += worlds
    assert all(one.closed for one in closed)
    assert all(one.traffic == MPI.COMM_NULL for one in closed)


def _lose(first: World, rank: int) -> None:
    if rank == 0:
        first.kept[0].close()
        first.disown(first.kept.pop())


def _swap(first: World, rank: int) -> None:
    if rank == 0:
        first.kept.reverse()


def _call(first: World, rank: int) -> None:
    if rank == 0:
        first.kept[-1].sequence()


def _revoke(first: World, rank: int) -> None:
    if rank == 0:
        first.kept[-1].revoke()


@pytest.mark.parametrize("spoil", [_lose, _swap, _call, _revoke])
def test_a_world_that_not_all_ranks_have_alike_serves_nobody(
    comm: MPI.Intracomm, spoil: Callable[[World, int], None]
) -> None:
    with cr.init(comm) as world:
        parts = [world.Dup() for _ in range(1 + (spoil is _swap))]
        kept = [serve(part) for part in parts]
        for part in parts:
            part.Free()
        first = world.membership.world
        spoil(first, world.rank)
        comm.Barrier()
        made = world.Dup()
        assert (serve(made) in kept) == (comm.size == 1 and spoil in (_swap, _call))
        made.Free()
        again = world.Dup()
        serve(again)
        again.Free()
    assert all(one.closed for one in kept)
