"""A world owns what is made in its time, and lets go of it in reverse order."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi4py import MPI

from closeranks.errors import Revoked
from tests.mpi.ground import opened


class Resource:
    """Writes down what happens to it."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def close(self) -> None:
        self.diary.append(f"close {self.name}")

    def revoke(self) -> None:
        self.diary.append(f"revoke {self.name}")


def test_what_is_owned_is_closed_youngest_first(comm: MPI.Intracomm) -> None:
    diary: list[str] = []
    with opened(comm) as world:
        for name in "abc":
            world.own(Resource(name, diary))
        gone = world.own(Resource("gone", diary))
        world.disown(gone)
        part = world.own(comm.Dup())
    assert diary == ["close c", "close b", "close a"]
    assert part == MPI.COMM_NULL
    assert world.traffic == MPI.COMM_NULL
    world.close()
    assert len(diary) == 3


def test_revoking_tells_all_once_and_is_local(comm: MPI.Intracomm) -> None:
    diary: list[str] = []
    with opened(comm) as world:
        world.own(Resource("a", diary))
        world.own(Resource("b", diary))
        world.check("Bcast")
        comm.Barrier()
        if comm.rank == 0:
            world.revoke()
            world.revoke()
            assert diary == ["revoke b", "revoke a"]
        comm.Barrier()
        assert world.revoked, "ranks of a node see the abort word"
        with pytest.raises(Revoked, match="Bcast"):
            world.check("Bcast")
        comm.Barrier()
    assert diary[-2:] == ["close b", "close a"]


def test_revoking_that_a_signal_has_ended_half_way_goes_on(comm: MPI.Intracomm) -> None:
    diary: list[str] = []
    with opened(comm) as world:
        world.own(Resource("a", diary))
        alarm = world.own(Resource("b", []))
        alarm.diary = None  # type: ignore[assignment]  # as if a handler raised
        if comm.rank == 0:
            with pytest.raises(AttributeError):
                world.revoke()
            assert not diary
            alarm.diary = diary
            world.revoke()
            world.revoke()
            assert diary == ["revoke b", "revoke a"]
        alarm.diary = diary
        comm.Barrier()


def test_numbers_count_up(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        assert [world.sequence() for _ in range(4)] == [0, 1, 2, 3]


def test_traffic_is_not_the_callers_communicator(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        assert MPI.Comm.Compare(world.traffic, comm) == MPI.CONGRUENT
        assert world.node.size == comm.size, "this test runs on one node"


def test_nothing_is_left_in_node_memory(comm: MPI.Intracomm) -> None:
    import os

    folder = Path(f"/dev/shm/closeranks-{os.getuid()}")
    mine = f"{os.getpid()}-*"
    with opened(comm):
        assert list(folder.glob(mine)) == [], "the name goes as soon as all have mapped it"
