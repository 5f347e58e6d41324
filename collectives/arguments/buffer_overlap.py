"""Send and receive buffers that lie in the same memory.

MPI forbids it but for `IN_PLACE`.  Where what is sent lies just where
`IN_PLACE` looks for it, the call is made in place; all other overlaps are
refused, for what is received would overwrite what is still to be sent.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from closeranks.comms.buffers.buffer_spec import Message
from closeranks.comms.buffers.vector_spec import Vector
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import Demand

#: Operations in place that read this rank's block where all blocks are.
_OWN_BLOCK: Final = {"allgather", "allgatherv", "gather", "gatherv"}
_FROM_ONE: Final = {"scatter", "scatterv"}
#: Operations in place that read all of the receive buffer.
_WHOLE: Final = {"allreduce", "reduce", "scan", "exscan", "alltoall", "alltoallv"}
#: How long NumPy may search for an element that two arrays with gaps share.
_MOST_WORK: Final = 100_000


def check_disjoint(demand: Demand) -> None:
    """Refuse buffers that overlap, or make of the call one that is in place.

    Local.

    Parameters
    ----------
    demand : Demand
        The call.

    Raises
    ------
    UsageError
        If what is received would overwrite what is sent.
    """
    source, target = demand.source, demand.target
    if source is None or target is None or demand.in_place or not (source.nbytes and target.nbytes):
        return
    if not np.may_share_memory(source.memory.data, target.memory.data):
        return
    if not _overlap(source, target):
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


def _is_in_place(demand: Demand, source: Message | Vector, target: Message | Vector) -> bool:
    """Tell whether what is sent lies where a call in place looks for it."""
    operation = demand.operation
    if operation in _WHOLE:
        return source.place is not None and source.place == target.place
    if operation in _OWN_BLOCK:
        return _ranges(source) == [_own_block(demand, target)]
    return operation in _FROM_ONE and _ranges(target) == [_own_block(demand, source)]


def _own_block(demand: Demand, whole: Message | Vector) -> tuple[int, int]:
    """Give the addresses at which this rank's block among all begins and ends."""
    base, rank = whole.memory.data.ctypes.data, demand.rank
    if isinstance(whole, Vector):
        start = base + int(whole.displacements[rank]) * whole.element.extent
        return start, start + int(whole.sizes[rank])
    nbytes = whole.nbytes // demand.size
    return base + whole.offset + rank * nbytes, base + whole.offset + (rank + 1) * nbytes


def _make_in_place(demand: Demand) -> None:
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
