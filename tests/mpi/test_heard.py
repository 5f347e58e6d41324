"""What ranks tell each other in a recovery arrives, and nothing that did not is taken for it."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from closeranks.comms.liveness import recovery_allgather


@pytest.mark.parametrize("length", [0, 1, 100_000])
def test_objects_arrive(comm: MPI.Intracomm, length: int) -> None:
    every = [(rank, "x" * length * rank) for rank in range(comm.size)]
    assert recovery_allgather.allgather(comm, every[comm.rank]) == every
    for root in range(comm.size):
        one = every[root] if comm.rank == root else None
        assert recovery_allgather.bcast(comm, one, root) == every[root]


def test_what_the_library_did_not_write_is_a_dead_rank() -> None:
    recovery_allgather._check(1)
    with pytest.raises(MPI.Exception):
        recovery_allgather._check(0)
