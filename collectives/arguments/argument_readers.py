"""How the arguments of each operation are read.

One function reads one operation: those that move equal blocks, and those that
move blocks of different sizes, are here; those that reduce are in
`closeranks.collectives.arguments.reduction_arguments`.  `read` calls them, and
sees to what all operations have in common.

MPI forbids that a send buffer and a receive buffer overlap, but for
`IN_PLACE`.  If the send buffer lies just where `IN_PLACE` looks for it, the
call is made in place.  All other overlaps are refused: the data that arrive
would overwrite data that are still to be sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np

from closeranks.collectives.arguments import reduction_arguments
from closeranks.collectives.arguments.collective_call import CollectiveCall
from closeranks.collectives.arguments.native_handover import spoilt
from closeranks.collectives.arguments.reduction_arguments import is_in_place, read_root
from closeranks.collectives.plans.collective import OF_ONE, REDUCING
from closeranks.collectives.reduction.op import Mean, name_of
from closeranks.comms.buffers.buffer_spec import Counts, Message, Spec, Vector, message, vector
from closeranks.comms.buffers.datatype import go_together, signature
from closeranks.comms.buffers.half_as_float import HALVES, WIDE, widened
from closeranks.comms.mpi import messages
from closeranks.errors import UsageError

#: Operations in place that read this rank's block where all blocks are.
_OWN_BLOCK: Final = {"allgather", "allgatherv", "gather", "gatherv"}
_FROM_ONE: Final = {"scatter", "scatterv"}
#: Operations in place that read all of the receive buffer.
_WHOLE: Final = {"allreduce", "reduce", "scan", "exscan", "alltoall", "alltoallv"}
#: How long NumPy may search for an element that two arrays with gaps share.
_MOST_WORK: Final = 100_000


def check_disjoint(demand: CollectiveCall) -> None:
    """Refuse buffers that overlap, or make of the call one that is in place.

    Local.

    Parameters
    ----------
    demand : CollectiveCall
        The call.

    Raises
    ------
    UsageError
        If what is received would overwrite what is sent.
    """
    source, target = demand.source, demand.target
    if source is None or target is None or demand.in_place:
        return
    if not np.may_share_memory(source.memory.data, target.memory.data):
        return
    if not (source.nbytes and target.nbytes and _overlap(source, target)):
        return
    if _is_in_place(demand, source, target):
        _make_in_place(demand)
        return
    raise UsageError(
        demand.operation.capitalize(),
        f"the send buffer ({source.nbytes} bytes) and the receive buffer ({target.nbytes} bytes)"
        " overlap in memory",
        "pass MPI.IN_PLACE, or buffers that do not",
    )


def _overlap(source: Message | Vector, target: Message | Vector) -> bool:
    """Tell whether two buffers have a byte in common, if that is quickly found."""
    first, second = source.memory, target.memory
    if not (first.contiguous and second.contiguous):
        try:
            shared: bool = np.shares_memory(first.data, second.data, max_work=_MOST_WORK)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return False
        return shared
    if not (source.element.plain and target.element.plain):
        return False  # entries of both may lie between each other
    sent = sorted(_ranges(source))  # which may overlap each other: one block for many ranks
    ends = list(accumulate((end for _, end in sent), max))
    for low, high in _ranges(target):
        before = bisect_left(sent, (high, high))
        if before and ends[before - 1] > low:
            return True
    return False


def _ranges(part: Message | Vector) -> list[tuple[int, int]]:
    """List the addresses at which data begin and end."""
    base = part.memory.data.ctypes.data
    if isinstance(part, Message):
        return [(base + part.offset, base + part.offset + part.nbytes)]
    starts = base + part.displacements * part.element.extent
    blocks = zip(starts.tolist(), part.sizes.tolist(), strict=True)
    return [(start, start + nbytes) for start, nbytes in blocks if nbytes]


def _is_in_place(
    demand: CollectiveCall, source: Message | Vector, target: Message | Vector
) -> bool:
    """Tell whether what is sent lies where a call in place looks for it."""
    operation = demand.operation
    if operation in _WHOLE:
        return source.place is not None and source.place == target.place
    if operation in _OWN_BLOCK:
        return _ranges(source) == [_own_block(demand, target)]
    return operation in _FROM_ONE and _ranges(target) == [_own_block(demand, source)]


def _own_block(demand: CollectiveCall, whole: Message | Vector) -> tuple[int, int]:
    """Give the addresses at which this rank's block among all begins and ends."""
    base, rank = whole.memory.data.ctypes.data, demand.rank
    if isinstance(whole, Vector):
        start = base + int(whole.displacements[rank]) * whole.element.extent
        return start, start + int(whole.sizes[rank])
    nbytes = whole.nbytes // demand.size
    return base + whole.offset + rank * nbytes, base + whole.offset + (rank + 1) * nbytes


def _make_in_place(demand: CollectiveCall) -> None:
    from mpi4py import MPI

    arguments: list[Any] = list(demand.arguments)
    demand.in_place = True
    if demand.operation in _FROM_ONE:
        arguments[1], demand.target = MPI.IN_PLACE, None
    elif demand.operation in ("alltoall", "alltoallv"):
        arguments[0], demand.source = MPI.IN_PLACE, demand.target
    else:
        arguments[0], demand.source = MPI.IN_PLACE, None
    demand.arguments = tuple(arguments)


def bcast(rank: int, size: int, buffer: Spec, root: int) -> CollectiveCall:
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
    CollectiveCall
        Nothing is copied.
    """
    root = read_root("Bcast", root, size)
    found = message(buffer, "Bcast", writable=rank != root)
    demand = CollectiveCall("bcast", (buffer, root), rank, size, root=root)
    if rank == root:
        demand.source = found
    else:
        demand.target = found
    demand.count = demand.nbytes = found.nbytes
    return demand


def gather(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> CollectiveCall:
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
    CollectiveCall
        Nothing is copied.
    """
    root = read_root("Gather", root, size)
    target = message(recvbuf, "Gather", blocks=size, writable=True) if rank == root else None
    in_place = rank == root and is_in_place(sendbuf)
    source = None if in_place else message(sendbuf, "Gather")
    demand = CollectiveCall("gather", (sendbuf, recvbuf, root), rank, size, root=root)
    return _blocks(demand, source, target, source, target)


def scatter(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> CollectiveCall:
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
    CollectiveCall
        Nothing is copied.
    """
    root = read_root("Scatter", root, size)
    source = message(sendbuf, "Scatter", blocks=size) if rank == root else None
    in_place = rank == root and is_in_place(recvbuf)
    target = None if in_place else message(recvbuf, "Scatter", writable=True)
    demand = CollectiveCall("scatter", (sendbuf, recvbuf, root), rank, size, root=root)
    return _blocks(demand, source, target, target, source)


def allgather(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> CollectiveCall:
    """Read Allgather; in place, the rank's own block lies where it belongs.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    target = message(recvbuf, "Allgather", blocks=size, writable=True)
    source = None if is_in_place(sendbuf) else message(sendbuf, "Allgather")
    demand = CollectiveCall("allgather", (sendbuf, recvbuf), rank, size)
    return _blocks(demand, source, target, source, target)


def alltoall(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> CollectiveCall:
    """Read Alltoall; in place, what arrives takes the place of what is sent.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    target = message(recvbuf, "Alltoall", blocks=size, writable=True)
    demand = CollectiveCall("alltoall", (sendbuf, recvbuf), rank, size)
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
    demand: CollectiveCall,
    source: Message | None,
    target: Message | None,
    one: Message | None,
    all_of_them: Message | None,
) -> CollectiveCall:
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


def gatherv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> CollectiveCall:
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
    CollectiveCall
        Nothing is copied.
    """
    root = read_root("Gatherv", root, size)
    demand = CollectiveCall("gatherv", (sendbuf, recvbuf, root), rank, size, root=root)
    target = vector(recvbuf, "Gatherv", size, writable=True) if rank == root else None
    in_place = rank == root and is_in_place(sendbuf)
    source = None if in_place else message(sendbuf, "Gatherv")
    return _own_vector_block(demand, source, target, source, target)


def scatterv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec, root: int) -> CollectiveCall:
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
    CollectiveCall
        Nothing is copied.
    """
    root = read_root("Scatterv", root, size)
    demand = CollectiveCall("scatterv", (sendbuf, recvbuf, root), rank, size, root=root)
    source = vector(sendbuf, "Scatterv", size) if rank == root else None
    in_place = rank == root and is_in_place(recvbuf)
    target = None if in_place else message(recvbuf, "Scatterv", writable=True)
    return _own_vector_block(demand, source, target, target, source)


def allgatherv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> CollectiveCall:
    """Read Allgatherv; every rank knows the size of every block.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    demand = CollectiveCall("allgatherv", (sendbuf, recvbuf), rank, size)
    target = vector(recvbuf, "Allgatherv", size, writable=True)
    source = None if is_in_place(sendbuf) else message(sendbuf, "Allgatherv")
    demand = _own_vector_block(demand, source, target, source, target)
    demand.nbytes = target.nbytes // size
    return demand


def alltoallv(rank: int, size: int, sendbuf: Spec, recvbuf: Spec) -> CollectiveCall:
    """Read Alltoallv; a rank knows what it sends and what it receives.

    Parameters
    ----------
    rank, size : int
        Of this rank and its communicator.
    sendbuf, recvbuf : buffer specifications
        What the caller passed.

    Returns
    -------
    CollectiveCall
        Nothing is copied.
    """
    target = vector(recvbuf, "Alltoallv", size, writable=True)
    in_place = is_in_place(sendbuf)
    source = target if in_place else vector(sendbuf, "Alltoallv", size)
    sent, received = source.sizes, target.sizes
    if sent[rank] != received[rank]:
        raise UsageError("Alltoallv", f"sends itself {sent[rank]} bytes, receives {received[rank]}",
                         "make them equal")  # fmt: skip
    demand = CollectiveCall("alltoallv", (sendbuf, recvbuf), rank, size, in_place=in_place)
    demand.source, demand.target = source, target
    demand.counts = np.stack([sent, received])
    return demand


def _own_vector_block(
    demand: CollectiveCall,
    source: Message | Vector | None,
    target: Message | Vector | None,
    one: Message | None,
    all_of_them: Vector | None,
) -> CollectiveCall:
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


#: ``(rank, size, *arguments)``.
READERS: dict[str, Callable[..., CollectiveCall]] = {
    "barrier": partial(CollectiveCall, "barrier", ()),
    "bcast": bcast,
    "reduce": reduction_arguments.reduce,
    "allreduce": partial(reduction_arguments.like_vector, "Allreduce"),
    "reduce_scatter_block": reduction_arguments.reduce_scatter_block,
    "reduce_scatter": reduction_arguments.reduce_scatter,
    "allgather": allgather,
    "allgatherv": allgatherv,
    "gather": gather,
    "gatherv": gatherv,
    "scatter": scatter,
    "scatterv": scatterv,
    "alltoall": alltoall,
    "alltoallv": alltoallv,
    "scan": partial(reduction_arguments.like_vector, "Scan"),
    "exscan": partial(reduction_arguments.like_vector, "Exscan"),
}
#: Operations of MPI that round; the others choose among operands, or are of integers.
_ROUNDING = frozenset({"SUM", "PROD"})


def read(
    operation: str,
    rank: int,
    size: int,
    arguments: tuple[Any, ...],
    *,
    wide: bool = False,
    form: str = "",
) -> CollectiveCall:
    """Read the arguments of a call.

    Local.

    Parameters
    ----------
    operation : str
        One of `closeranks.collectives.plans.collective.OPERATIONS`.
    rank, size : int
        Of this rank and its communicator.
    arguments : tuple
        What the caller passed.
    wide : bool
        Whether sums and products travel in float32.
    form : str
        "" for blocking calls, "I" or "_init".

    Returns
    -------
    CollectiveCall
        Nothing is copied.

    Raises
    ------
    UsageError
        If the arguments are wrong, or float32 cannot carry them.
    """
    demand = READERS[operation](rank, size, *arguments)
    if demand.source is not None and demand.target is not None:
        check_disjoint(demand)
        if demand.source is not None and demand.source.element is not demand.target.element:
            _check_types(demand)
    if wide and operation in REDUCING and _rounds(demand):
        _widen(demand)
    nbytes = demand.nbytes if operation in OF_ONE else demand.nbytes * size
    if not (demand.native or demand.planned):
        if nbytes >= 2 * messages.LONGEST:
            demand.native = f"{nbytes} bytes are more than the library counts in one call"
        elif demand.in_place and operation in spoilt(form):
            demand.native = "this MPI library gets it wrong in place"
    return demand


def _check_types(demand: CollectiveCall) -> None:
    """Refuse to receive numbers of another type or byte order than is sent."""
    source, target = demand.source, demand.target
    if source is None or target is None or source.element is target.element:
        return
    sent, received = signature(source.element), signature(target.element)
    if not go_together(sent, received):
        raise UsageError(demand.operation.capitalize(), f"sends {sent}, receives {received}",
                         "use one type, or MPI.BYTE")  # fmt: skip


def _rounds(demand: CollectiveCall) -> bool:
    """Whether a demand is a sum or a product."""
    op = demand.op
    return isinstance(op, Mean) or (op is not None and name_of(op) in _ROUNDING)


def _widen(demand: CollectiveCall) -> None:
    """Let half-precision operands travel in float32, and refuse what it cannot hold."""
    known = demand.source or demand.target
    assert known is not None
    name = known.element.dtype.name if known.element.dtype else str(known.element)
    if name == WIDE.name:
        return
    if name not in HALVES:
        raise UsageError(demand.operation, f"wire='float32' is no wire for {name}",
                         "pass float16 or bfloat16, or leave the using block")  # fmt: skip
    demand.source, demand.target = _wide(demand.source), _wide(demand.target)
    demand.nbytes = demand.nbytes * WIDE.itemsize // known.element.nbytes
    demand.native = demand.planned = None  # what stood in the way were the narrow ones
    wide = demand.source or demand.target
    assert wide is not None
    assert demand.op is not None
    demand.reduce_with(demand.op, wide.element)


def _wide(part: Message | Vector | None) -> Message | None:
    """Widen one side of a demand."""
    assert not isinstance(part, Vector)
    return None if part is None else widened(part)
