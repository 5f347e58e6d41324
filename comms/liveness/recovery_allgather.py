"""Broadcast and all-gather on communicators that were made in a recovery.

When the MPI library notices a death, it ends pending operations on all
communicators that it knows.  A communicator that is just being made is not
among them: operations on it go on waiting.  So a rank that waits long asks
for dead ranks itself.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from mpi4py import MPI

from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.mpi_lock import TURN
from closeranks.comms.wait import Deadline, wait

#: Wait before a rank asks whether another one has died, seconds.
_PATIENCE_S: Final = 1.0


def allgather(comm: MPI.Intracomm, one: object) -> list[Any]:
    """Give an object of every rank to all.

    Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; revoked if one of them is found dead.
    one : object
        The object of this rank; pickled.

    Returns
    -------
    list of object
        The objects of all ranks, by rank.

    Raises
    ------
    mpi4py.MPI.Exception
        If ranks have died, or one has given up.
    """
    data = np.frombuffer(MPI.pickle.dumps(one), np.uint8)
    length, lengths = np.array([data.size]), np.zeros(comm.size, np.int64)
    _finish(comm, comm.Iallgather(length, lengths))
    found, stops = np.zeros(int(lengths.sum()), np.uint8), np.cumsum(lengths)
    spec = [found, (lengths, stops - lengths), MPI.BYTE]
    _finish(comm, comm.Iallgatherv([data, MPI.BYTE], spec))
    _check(lengths.all() and found[stops - lengths].all())
    return [MPI.pickle.loads(found[stop - count : stop])
            for stop, count in zip(stops.tolist(), lengths.tolist(), strict=True)]  # fmt: skip


def bcast(comm: MPI.Intracomm, one: object, root: int) -> Any:
    """Give an object of ``root`` to all.

    Collective; as `allgather`.
    """
    text = MPI.pickle.dumps(one) if comm.rank == root else b""
    length = np.array([len(text)])
    _finish(comm, comm.Ibcast(length, root))
    data = np.zeros(int(length[0]), np.uint8)
    data[: len(text)] = np.frombuffer(text, np.uint8)
    _finish(comm, comm.Ibcast([data, MPI.BYTE], root))
    _check(data.size and data[0])
    return MPI.pickle.loads(data)


def _check(arrived: object) -> None:
    """Raise if the library ended well and wrote nothing: a rank has died."""
    if not arrived:
        raise MPI.Exception(MPI.ERR_PROC_FAILED)


def _finish(comm: MPI.Intracomm, request: MPI.Request) -> None:
    """Wait for an operation; if a rank dies meanwhile, end it for all."""
    patience = Deadline(_PATIENCE_S)

    def is_over() -> bool:
        nonlocal patience
        with TURN:
            over = bool(request.Test())
        if not over and patience.expired:
            patience = Deadline(_PATIENCE_S)
            if ulfm.failed(comm):
                ulfm.revoke(comm)
        return over

    wait(is_over)
