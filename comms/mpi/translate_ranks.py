"""What the ranks of one communicator are called in another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def ranks_in(comm: MPI.Intracomm, other: MPI.Intracomm) -> list[int]:
    """Give the ranks that a communicator's members have in another one.

    Local.

    Parameters
    ----------
    comm, other : MPI.Intracomm
        Revoked or not.

    Returns
    -------
    list of int
        Rank in ``comm`` -> rank in ``other``; `MPI.UNDEFINED` where there is none.
    """
    group, others = comm.Get_group(), other.Get_group()
    ranks = group.Translate_ranks(None, others)
    group.Free()
    others.Free()
    return list(ranks)
