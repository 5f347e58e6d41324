"""Demands that move blocks of different sizes: the v-operations."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.arguments.collective_call import Demand
from closeranks.collectives.arguments.reduction_arguments import is_in_place, read_root
from closeranks.comms.buffers.buffer_spec import Message, Spec, message
from closeranks.comms.buffers.vector_spec import Counts, Vector, vector
from closeranks.errors import UsageError


def gatherv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> Demand:
    """Read Gatherv; only the root knows the size of every block.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.
    root : int
        Who receives.

    Returns
    -------
    Demand
        Nothing is copied.
    """
    root = read_root("Gatherv", root, size)
    demand = Demand("gatherv", (sendbuf, recvbuf, root), rank, size, root=root)
    target = vector(recvbuf, "Gatherv", size, writable=True) if rank == root else None
    in_place = rank == root and is_in_place(sendbuf)
    source = None if in_place else message(sendbuf, "Gatherv")
    return _own_block(demand, source, target, source, target)


def scatterv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> Demand:
    """Read Scatterv; only the root knows the size of every block.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.
    root : int
        Who sends.

    Returns
    -------
    Demand
        Nothing is copied.
    """
    root = read_root("Scatterv", root, size)
    demand = Demand("scatterv", (sendbuf, recvbuf, root), rank, size, root=root)
    source = vector(sendbuf, "Scatterv", size) if rank == root else None
    in_place = rank == root and is_in_place(recvbuf)
    target = None if in_place else message(recvbuf, "Scatterv", writable=True)
    return _own_block(demand, source, target, target, source)


def allgatherv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> Demand:
    """Read Allgatherv; every rank knows the size of every block.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.

    Returns
    -------
    Demand
        Nothing is copied.
    """
    demand = Demand("allgatherv", (sendbuf, recvbuf), rank, size)
    target = vector(recvbuf, "Allgatherv", size, writable=True)
    source = None if is_in_place(sendbuf) else message(sendbuf, "Allgatherv")
    demand = _own_block(demand, source, target, source, target)
    demand.nbytes = target.nbytes // size
    return demand


def alltoallv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> Demand:
    """Read Alltoallv; a rank knows what it sends and what it receives.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.

    Returns
    -------
    Demand
        Nothing is copied.
    """
    target = vector(recvbuf, "Alltoallv", size, writable=True)
    in_place = is_in_place(sendbuf)
    source = target if in_place else vector(sendbuf, "Alltoallv", size)
    sent, received = source.sizes, target.sizes
    if sent[rank] != received[rank]:
        raise UsageError("Alltoallv", f"sends itself {sent[rank]} bytes, receives {received[rank]}",
                         "make them equal")  # fmt: skip
    demand = Demand("alltoallv", (sendbuf, recvbuf), rank, size, in_place=in_place)
    demand.source, demand.target = source, target
    demand.counts = np.stack([sent, received])
    return demand


def _own_block(
    demand: Demand,
    source: Message | Vector | None,
    target: Message | Vector | None,
    one: Message | None,
    all_of_them: Vector | None,
) -> Demand:
    """Fill in buffers and counts; compare the rank's own block on both sides."""
    name = demand.operation.capitalize()
    demand.source, demand.target = source, target
    demand.in_place = one is None
    counts: Counts = np.full(demand.size, -1, np.int64)
    if all_of_them is not None:
        counts = all_of_them.sizes
        mine = int(counts[demand.rank])
        if one is not None and one.nbytes != mine:
            raise UsageError(name, f"a block of {one.nbytes} bytes, counts[{demand.rank}] says "
                             f"{mine}", "make them equal")  # fmt: skip
    elif one is not None:
        counts[demand.rank] = one.nbytes
    demand.counts = counts
    return demand
