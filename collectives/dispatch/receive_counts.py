"""How much each rank receives, asked where the caller does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.reduction_arguments import received_count
from closeranks.collectives.engine.error_translation import explaining

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.comms.buffers.buffer_spec import Spec


def received_counts(service: Service, recvbuf: Spec) -> list[int]:
    """Ask all ranks how much they receive in a Reduce_scatter.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator.
    recvbuf : buffer specification
        Of this rank.

    Returns
    -------
    list of int
        Entries, by rank.

    Raises
    ------
    PeerLost, Revoked
        If ranks have died or given up.
    """
    service.gate.refuse("reduce_scatter")
    own = np.array([received_count("Reduce_scatter", recvbuf)])
    found = np.full(service.size, -1)
    with explaining("reduce_scatter", service.plain, service.family.world):
        service.careful.Allgather(own, found)
        if found.min() < 0:  # where a rank has died the library may end well and write nothing
            raise MPI.Exception(MPI.ERR_PROC_FAILED)
    counts: list[int] = found.tolist()
    return counts
