"""Demands that move equal blocks: bcast, gather, scatter, all-gather, all-to-all."""

from __future__ import annotations

from closeranks.collectives.arguments.collective_call import Demand
from closeranks.collectives.arguments.reduction_arguments import is_in_place, read_root
from closeranks.comms.buffers.buffer_spec import Message, Spec, message
from closeranks.errors import UsageError


def bcast(rank: int, size: int, buffer: Spec, root: int) -> Demand:
    """Read Bcast: one buffer, read at the root and written elsewhere.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    buffer : buffer specification
        What the caller passed.
    root : int
        Who sends.

    Returns
    -------
    Demand
        Nothing is copied.
    """
    root = read_root("Bcast", root, size)
    found = message(buffer, "Bcast", writable=rank != root)
    demand = Demand("bcast", (buffer, root), rank, size, root=root)
    if rank == root:
        demand.source = found
    else:
        demand.target = found
    demand.count = demand.nbytes = found.nbytes
    return demand


def gather(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> Demand:
    """Read Gather; the receive buffer counts at the root only.

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
    root = read_root("Gather", root, size)
    target = message(recvbuf, "Gather", blocks=size, writable=True) if rank == root else None
    in_place = rank == root and is_in_place(sendbuf)
    source = None if in_place else message(sendbuf, "Gather")
    demand = Demand("gather", (sendbuf, recvbuf, root), rank, size, root=root)
    return _blocks(demand, source, target, source, target)


def scatter(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> Demand:
    """Read Scatter; the send buffer counts at the root only.

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
    root = read_root("Scatter", root, size)
    source = message(sendbuf, "Scatter", blocks=size) if rank == root else None
    in_place = rank == root and is_in_place(recvbuf)
    target = None if in_place else message(recvbuf, "Scatter", writable=True)
    demand = Demand("scatter", (sendbuf, recvbuf, root), rank, size, root=root)
    return _blocks(demand, source, target, target, source)


def allgather(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> Demand:
    """Read Allgather; in place, the rank's own block lies where it belongs.

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
    target = message(recvbuf, "Allgather", blocks=size, writable=True)
    source = None if is_in_place(sendbuf) else message(sendbuf, "Allgather")
    demand = Demand("allgather", (sendbuf, recvbuf), rank, size)
    return _blocks(demand, source, target, source, target)


def alltoall(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> Demand:
    """Read Alltoall; in place, what arrives takes the place of what is sent.

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
    target = message(recvbuf, "Alltoall", blocks=size, writable=True)
    demand = Demand("alltoall", (sendbuf, recvbuf), rank, size)
    if is_in_place(sendbuf):
        demand.in_place = True
        demand.source, demand.target = target, target
    else:
        source = message(sendbuf, "Alltoall", blocks=size)
        demand.source, demand.target = source, target
        if source.nbytes != target.nbytes:
            raise UsageError("Alltoall", f"sends {source.nbytes} bytes, receives {target.nbytes}",
                             "make them equal")  # fmt: skip
    demand.count = demand.nbytes = target.nbytes // size
    return demand


def _blocks(
    demand: Demand,
    source: Message | None,
    target: Message | None,
    one: Message | None,
    all_of_them: Message | None,
) -> Demand:
    """Fill in buffers of one block and of all blocks, and compare their sizes."""
    name, size = demand.operation.capitalize(), demand.size
    demand.source, demand.target = source, target
    demand.in_place = one is None
    if one is not None and all_of_them is not None and one.nbytes * size != all_of_them.nbytes:
        raise UsageError(name, f"a block of {one.nbytes} bytes and {all_of_them.nbytes} bytes "
                         f"for {size} blocks", f"make them {one.nbytes * size}")  # fmt: skip
    known = one.nbytes if one is not None else all_of_them.nbytes // size if all_of_them else 0
    demand.count = demand.nbytes = known
    return demand
