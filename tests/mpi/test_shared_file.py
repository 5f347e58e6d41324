"""Node memory shared by real ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from closeranks.comms import shared_file
from closeranks.comms.shared_file import share
from closeranks.errors import Unavailable


def test_all_ranks_see_the_same_bytes(comm: MPI.Intracomm) -> None:
    made = share(comm, 8 * comm.size)
    words = made.array.view(np.int64)
    assert not words.any()
    comm.Barrier()
    words[comm.rank] = comm.rank + 1
    comm.Barrier()
    assert words.tolist() == list(range(1, comm.size + 1))
    assert not made.path.exists()
    del words
    made.close()


def test_what_one_rank_cannot_map_nobody_gets(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == comm.size - 1 and comm.size > 1:

        def refuse(*_: object) -> None:
            raise Unavailable("node memory here", "mend it")

        monkeypatch.setattr(shared_file.SharedFile, "attach", refuse)
    if comm.size == 1:
        return
    with pytest.raises(Unavailable, match="node memory here"):
        share(comm, 64)


def test_what_cannot_be_made_fails_everywhere(comm: MPI.Intracomm) -> None:
    with pytest.raises(Unavailable, match="node memory"):
        share(comm, 64, root=Path(__file__))  # no folder
