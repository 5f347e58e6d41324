"""The ground the rank tests stand on: who is in, who is left out."""

from __future__ import annotations

from mpi4py import MPI


def test_a_part_of_the_world_has_the_size_asked_for(comm: MPI.Intracomm) -> None:
    assert comm.size in (1, 2, 3, 4)
    assert comm.rank == MPI.COMM_WORLD.rank
    assert comm.allreduce(1) == comm.size


def test_messages_of_a_test_stay_in_it(comm: MPI.Intracomm) -> None:
    assert comm.allgather(comm.rank) == list(range(comm.size))
    assert not comm.iprobe()
