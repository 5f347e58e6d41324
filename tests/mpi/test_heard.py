"""What ranks tell each other in a recovery arrives, and nothing that did not is taken for it."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from closeranks.comms import heard


@pytest.mark.parametrize("length", [0, 1, 100_000])
def test_objects_arrive(comm: MPI.Intracomm, length: int) -> None:
    every = [(rank, "x" * length * rank) for rank in range(comm.size)]
    assert heard.allgather(comm, every[comm.rank]) == every
    for root in range(comm.size):
        one = every[root] if comm.rank == root else None
        assert heard.bcast(comm, one, root) == every[root]


def test_what_the_library_did_not_write_is_a_dead_rank() -> None:
    heard._check(1)
    with pytest.raises(MPI.Exception):
        heard._check(0)
