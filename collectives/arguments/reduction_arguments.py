"""How the arguments of calls that reduce are read: all-reduce, scan, ..."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from closeranks.collectives.arguments.collective_call import CollectiveCall
from closeranks.collectives.reduction.op import MEAN, Mean
from closeranks.comms import argument
from closeranks.comms.buffers.buffer_spec import Message, Spec, message, numbers
from closeranks.errors import UsageError

Op = Any


def is_in_place(spec: Spec) -> bool:
    """Tell whether an argument says "in place", as mpi4py does.  Local."""
    return spec is None or spec is MPI.IN_PLACE


def read_root(operation: str, root: int, size: int) -> int:
    """Read a root, or raise UsageError if it is no rank of the communicator.  Local."""
    try:
        return argument.whole(operation, "root", root, below=size)
    except UsageError:
        problem = f"root {argument.shown(root)} of {size} ranks"
        raise UsageError(operation, problem, f"0 <= root < {size}, a whole number") from None


def like_vector(
    name: str, rank: int, size: int, sendbuf: Spec, recvbuf: Spec, op: Op
) -> CollectiveCall:
    """Read Allreduce, Scan or Exscan: as much comes out as goes in.

    Parameters
    ----------
    name : str
        The method.
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.
    op : MPI.Op or Mean
        The reduction.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    target = message(recvbuf, name, writable=True)
    source = None if sendbuf is None or sendbuf is MPI.IN_PLACE else message(sendbuf, name)
    served_by = MPI.SUM if isinstance(op, Mean) else op
    demand = CollectiveCall(name.lower(), (sendbuf, recvbuf, served_by), rank, size)
    if op is MEAN and name != "Allreduce":
        raise UsageError(name, "MEAN has no partial results", "use MPI.SUM and divide")
    _reducing(demand, op, source, target)
    demand.count, demand.nbytes = target.count, target.nbytes
    return demand


def reduce(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, op: Op, root: int) -> CollectiveCall:
    """Read Reduce; the receive buffer counts at the root only.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.
    op : MPI.Op or Mean
        The reduction.
    root : int
        Who gets the result.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    root = read_root("Reduce", root, size)
    at_root = rank == root
    target = message(recvbuf, "Reduce", writable=True) if at_root else None
    source = None
    if not (at_root and is_in_place(sendbuf)):
        source = message(sendbuf, "Reduce")
    demand = CollectiveCall("reduce", (sendbuf, recvbuf, _native(op), root), rank, size, root=root)
    _reducing(demand, op, source, target)
    known = source or target
    assert known is not None
    demand.count, demand.nbytes = known.count, known.nbytes
    return demand


def reduce_scatter_block(
    rank: int, size: int, sendbuf: Spec, recvbuf: Spec, op: Op
) -> CollectiveCall:
    """Read Reduce_scatter_block; in place, the first block takes the result.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.
    op : MPI.Op or Mean
        The reduction.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    name = "Reduce_scatter_block"
    demand = CollectiveCall(name.lower(), (sendbuf, recvbuf, _native(op)), rank, size)
    if is_in_place(sendbuf):
        source = message(recvbuf, name, blocks=size, writable=True)
        target = Message(source.memory, source.element, source.count // size, source.offset)
        demand.in_place = True
    else:
        source = message(sendbuf, name, blocks=size)
        target = message(recvbuf, name, writable=True)
        if source.count != target.count * size:
            raise UsageError(name, f"{source.count} entries for {size} blocks of {target.count}",
                             f"send {target.count * size}")  # fmt: skip
    _reducing(demand, op, source, target, same=False)
    demand.count, demand.nbytes = target.count, target.nbytes
    return demand


def reduce_scatter(
    rank: int, size: int, sendbuf: Spec, recvbuf: Spec, recvcounts: Any, op: Op
) -> CollectiveCall:
    """Read Reduce_scatter; in place, the front of the buffer takes the result.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.
    recvcounts : array_like of int
        Entries for each rank, the same everywhere.
    op : MPI.Op or Mean
        The reduction.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    name = "Reduce_scatter"
    counts = numbers(recvcounts, size, "recvcounts", name)
    total, mine = int(counts.sum()), int(counts[rank])
    demand = CollectiveCall(
        name.lower(), (sendbuf, recvbuf, counts.tolist(), _native(op)), rank, size
    )
    received = message(recvbuf, name, writable=True)
    if is_in_place(sendbuf):
        source = received
        target = Message(source.memory, source.element, mine, source.offset)
        demand.in_place = True
    else:
        source, target = message(sendbuf, name), received
        if target.count != mine:
            raise UsageError(name, f"a receive buffer of {target.count} entries, "
                             f"recvcounts[{rank}] is {mine}", "make them equal")  # fmt: skip
    if source.count != total:
        raise UsageError(name, f"{source.count} entries, recvcounts add up to {total}",
                         "make them equal")  # fmt: skip
    _reducing(demand, op, source, target, same=False)
    demand.counts, demand.nbytes = counts, total * source.element.nbytes // size
    return demand


def received_count(name: str, recvbuf: Spec) -> int:
    """Tell how many entries a receive buffer holds; for recvcounts not given.

    Parameters
    ----------
    name : str
        The method.
    recvbuf : buffer specification
        What the caller passed.

    Returns
    -------
    int
        Entries.
    """
    return message(recvbuf, name, writable=True).count


def _native(op: Op) -> MPI.Op:
    """Give the op that the library applies."""
    return MPI.SUM if isinstance(op, Mean) else op


def _reducing(
    demand: CollectiveCall,
    op: Op,
    source: Message | None,
    target: Message | None,
    *,
    same: bool = True,
) -> None:
    """Fill in buffers and op; refuse buffers that do not go together."""
    name = demand.operation.capitalize()
    if not isinstance(op, (MPI.Op, Mean)):
        raise UsageError(name, f"op {op!r} is no reduction", "an MPI.Op or closeranks.MEAN")
    if source is not None and target is not None:
        same_type = source.element is target.element and source.element.dtype is not None
        if not same_type or (same and source.count != target.count):
            _go_together(name, source, target, same=same)
    demand.source, demand.target = source, target
    demand.in_place = demand.in_place or source is None
    known = source or target
    assert known is not None
    demand.reduce_with(op, known.element)


def _go_together(name: str, source: Message, target: Message, *, same: bool) -> None:
    first, second = source.element, target.element
    unlike = first.dtype != second.dtype or first.extent != second.extent
    if unlike or (first.dtype is None and first.datatype != second.datatype):
        raise UsageError(name, f"sends {first}, receives {second}", "use one type")
    if same and source.count != target.count:
        raise UsageError(name, f"sends {source.count} entries, receives {target.count}",
                         "make them equal")  # fmt: skip
