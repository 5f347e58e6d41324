"""How the arguments of each operation are read, and in what they travel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from closeranks.collectives.arguments import (
    movement_arguments,
    reduction_arguments,
    vector_arguments,
)
from closeranks.collectives.arguments.buffer_overlap import check_disjoint
from closeranks.collectives.arguments.collective_call import Demand
from closeranks.collectives.plans.collective import OF_ONE, REDUCING
from closeranks.collectives.reduction.op import Mean, name_of
from closeranks.comms.buffers.buffer_spec import Message
from closeranks.comms.buffers.half_as_float import HALVES, WIDE, widened
from closeranks.comms.buffers.type_signature import go_together, signature
from closeranks.comms.buffers.vector_spec import Vector
from closeranks.comms.mpi import message_limits
from closeranks.errors import UsageError

#: ``(rank, size, *arguments)``.
READERS: dict[str, Callable[..., Demand]] = {
    "barrier": partial(Demand, "barrier", ()),
    "bcast": movement_arguments.bcast,
    "reduce": reduction_arguments.reduce,
    "allreduce": partial(reduction_arguments.like_vector, "Allreduce"),
    "reduce_scatter_block": reduction_arguments.reduce_scatter_block,
    "reduce_scatter": reduction_arguments.reduce_scatter,
    "allgather": movement_arguments.allgather,
    "allgatherv": vector_arguments.allgatherv,
    "gather": movement_arguments.gather,
    "gatherv": vector_arguments.gatherv,
    "scatter": movement_arguments.scatter,
    "scatterv": vector_arguments.scatterv,
    "alltoall": movement_arguments.alltoall,
    "alltoallv": vector_arguments.alltoallv,
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
    spoilt: frozenset[str] = frozenset(),
) -> Demand:
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
    spoilt : frozenset of str
        Operations that the library gets wrong in place.

    Returns
    -------
    Demand
        Nothing is copied.

    Raises
    ------
    UsageError
        If the arguments are wrong, or float32 cannot carry them.
    """
    demand = READERS[operation](rank, size, *arguments)
    if demand.source is not None and demand.target is not None:
        check_disjoint(demand)
        _check_types(demand)
    if wide and operation in REDUCING and _rounds(demand):
        _widen(demand)
    nbytes = demand.nbytes if operation in OF_ONE else demand.nbytes * size
    if not (demand.native or demand.planned):
        if message_limits.is_long(nbytes):
            demand.native = f"{nbytes} bytes are more than the library counts in one call"
        elif demand.in_place and operation in spoilt:
            demand.native = "this MPI library gets it wrong in place"
    return demand


def _check_types(demand: Demand) -> None:
    """Refuse to receive numbers of another type or byte order than is sent."""
    source, target = demand.source, demand.target
    if source is None or target is None or source.element is target.element:
        return
    sent, received = signature(source.element), signature(target.element)
    if not go_together(sent, received):
        raise UsageError(demand.operation.capitalize(), f"sends {sent}, receives {received}",
                         "use one type, or MPI.BYTE")  # fmt: skip


def _rounds(demand: Demand) -> bool:
    """Whether a demand is a sum or a product."""
    op = demand.op
    return isinstance(op, Mean) or (op is not None and name_of(op) in _ROUNDING)


def _widen(demand: Demand) -> None:
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
