"""One collective call, as the caller asked for it.

It is read from the arguments before anything is sent: what is wrong with them
is known here, on the rank that passed them.  It can be served in two ways: by
the MPI library with the caller's own arguments, or by a plan on plain bytes.
Its key is made here too, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.collectives.arguments.call_key import UNSIZED, Agreed, CallKey, Local
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.reduction.op import (
    MEAN,
    Mean,
    Reducer,
    is_commutative,
    predefined,
    reducer,
    title,
    undefined,
)
from closeranks.comms.buffers.array_memory import Bytes
from closeranks.comms.buffers.buffer_spec import Counts, Message, Vector
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.comms.gpu.device_array import Event


BYTE = np.dtype(np.uint8)
_NO_BYTES = np.empty(0, np.uint8)


@dataclass(slots=True)
class CollectiveCall:
    """What one rank passed to one collective.

    Attributes
    ----------
    operation : str
        One of `closeranks.collectives.plans.collective.OPERATIONS`.
    arguments : tuple
        What the library's own method takes.
    rank, size : int
        Of this rank and its communicator.
    nbytes : int
        What the choice sees: bytes of the vector or of one rank's block, of the
        mean block where all ranks know all blocks, 0 where no rank does.
    source, target : Message, Vector or None
        What is sent and what is received; None where there is none or where the
        other one is used in place.
    count : int
        Elements, as a plan counts them.
    counts : ndarray of int64 or None
        Elements of each block, as far as this rank knows them.
    dtype : numpy.dtype
        A plan's element: bytes where nothing is reduced.
    root : int
        Root of rooted operations.
    op : MPI.Op, Mean or None
        The reduction.
    in_place : bool
        Whether input and output share memory.
    commutative : bool
        Whether operands may change places.
    reducer : Reducer or None
        What combines two blocks; None where nothing is reduced.
    native : str or None
        Why the library cannot do it.
    planned : str or None
        Why no plan can do it.
    agreed : Agreed
        What is equal on all ranks; made once, when it is asked for first, so after
        all else is known.
    key : CallKey
        Equal for calls that a rank serves alike; made as ``agreed``.
    background : bool
        Whether it returns before it is done, so that a result on a device must
        be there when it is: no stream of the caller's knows when that was.
    """

    operation: str
    arguments: tuple[Any, ...]
    rank: int
    size: int
    nbytes: int = 0
    source: Message | Vector | None = None
    target: Message | Vector | None = None
    count: int = 0
    counts: Counts | None = None
    dtype: np.dtype[Any] = BYTE
    root: int = 0
    op: MPI.Op | Mean | None = None
    in_place: bool = False
    commutative: bool = True
    reducer: Reducer | None = field(default=None, repr=False)
    native: str | None = None
    planned: str | None = None
    background: bool = False
    agreed: Agreed = field(init=False, repr=False)
    key: CallKey = field(init=False, repr=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Agreed | CallKey:
            """Make the key when it is first asked for; then it is an attribute."""
            if name == "agreed":
                self.agreed = found = _made_agreed(self)
            elif name == "key":
                self.key = found = _made_key(self)
            else:
                raise AttributeError(name)
            return found

    @property
    def foreign(self) -> bool:
        """Whether mpi4py cannot take a buffer as it is."""
        source, target = self.source, self.target
        return (source is not None and source.foreign) or (target is not None and target.foreign)

    @property
    def on_device(self) -> bool:
        """Whether a buffer lies in device memory."""
        source, target = self.source, self.target
        if source is not None and source.memory.device is not None:
            return True
        return target is not None and target.memory.device is not None

    def settle(self) -> None:
        """Wait until a result that was sent to a device is there, where nobody else does."""
        there = None if self.target is None else self.target.memory.device
        if self.background and there is not None:
            there.settle()

    def reduce_with(self, op: MPI.Op | Mean, element: Any) -> None:
        """Note the reduction, and what can do it on this element."""
        self.op, dtype = op, element.dtype
        if element.datatype is None:
            self.native = f"MPI has no name for {element}"
        if dtype is None and not element.plain:
            self.planned = f"plans do not reduce {element}"
            if not isinstance(op, Mean):
                self._refuse(undefined(op, element.datatype))
            self.commutative = is_commutative(op)
            return
        self.dtype = dtype or np.dtype((np.void, element.extent))
        try:
            if dtype is None or isinstance(op, Mean) or not op.is_predefined:
                self.reducer = reducer(op, dtype or element.datatype)
            else:
                self.reducer = predefined(op.handle, dtype)
        except UsageError as error:
            if isinstance(op, Mean):
                raise
            self._refuse(error.problem)  # nor has the library that op
            self.commutative = is_commutative(op)
        else:
            self.commutative = self.reducer.commutative

    def _refuse(self, problem: str) -> None:
        """Refuse an op that is not defined on the type, before anything is sent."""
        if problem:
            raise UsageError(self.operation, problem, "use another op or another type")

    def divisor(self) -> int:
        """By how much the result is divided: the number of ranks for `MEAN`, else 1."""
        return self.size if self.op is MEAN else 1


def _made_agreed(demand: CollectiveCall) -> Agreed:
    """Give what all ranks know of a call.  Local."""
    operation, reduces, reducer = demand.operation, demand.operation in REDUCING, demand.reducer
    return Agreed(
        operation,
        0 if operation in UNSIZED else int(demand.nbytes).bit_length(),  # as `size_class`
        demand.commutative,
        demand.native is None,
        demand.root,
        title(demand.op) if reduces and reducer is None else reducer.title if reducer else "",
        demand.dtype if reduces else None,
    )


def _made_key(demand: CollectiveCall) -> CallKey:
    """Make the key of a call.  Local."""
    source, target = demand.source, demand.target
    counts = None if demand.counts is None else demand.counts.tobytes()
    sent = None if source is None else source.element.dtype
    received = None if target is None else target.element.dtype
    local = Local(
        demand.nbytes, demand.count, counts, demand.in_place, id(demand.op),
        arrays_of(demand), sent, received,
    )  # fmt: skip
    return CallKey(demand.agreed, local)


def arrays_of(demand: CollectiveCall) -> tuple[object, object]:
    """Give the types of the arrays that are passed to a call.  Local.

    Parameters
    ----------
    demand : CollectiveCall
        The call.

    Returns
    -------
    tuple of object
        Of the first buffer and of the second one; None for what has no type of its
        own (`IN_PLACE`).
    """
    arguments = demand.arguments
    if demand.operation == "barrier":
        return None, None
    first = _type_of(arguments[0])
    return first, None if demand.operation == "bcast" else _type_of(arguments[1])


def _type_of(spec: Any) -> object:
    """Give the type of the array that a message names, be it with a count or a type."""
    array = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
    return getattr(array, "dtype", None)


@dataclass(slots=True)
class CallMemory:
    """The bytes a demand works on, and what must be done to them at the end.

    Attributes
    ----------
    input, output : ndarray of uint8 or None
        Side by side, in rank order; the caller's memory wherever possible.
    finish : callable or None
        Divides and puts the output into the caller's memory.
    arrives : callable or None
        Whether the input has come from its device; None where it is there.
    """

    input: Bytes | None
    output: Bytes | None
    finish: Callable[[], None] | None
    arrives: Callable[[], bool] | None


def lay_out(demand: CollectiveCall) -> CallMemory:
    """Give the bytes that a plan for ``demand`` works on.

    Local.  Copies only where the caller's data do not lie side by side, and
    where MPI lets the input be overwritten that a plan still reads.

    Parameters
    ----------
    demand : CollectiveCall
        The call.

    Returns
    -------
    CallMemory
        Valid as long as the caller's buffers are.
    """
    source, target = demand.source, demand.target
    given: Bytes | None
    taken: Bytes | None
    later: list[Event] | None = [] if demand.background else None
    lies = None if target is None else target.straight
    if demand.in_place:
        given, taken = _in_place(demand, later)
    else:
        given, taken = None if source is None else source.straight, lies
        if given is None and source is not None:
            given = source.data(later)
        if taken is None and target is not None:
            taken = _room(demand, target)
    if demand.operation == "bcast" and given is not None:
        # Plans fill everybody's output; at the root it may be the input itself.
        taken = given if given.flags.writeable else np.empty_like(given)
    arrives = (lambda: all(event.done for event in later)) if later else None
    finish = None
    if taken is not None and target is not None and (lies is None or demand.op is MEAN):
        finish = _finish(demand, target, taken)
    return CallMemory(given, taken, finish, arrives)


def _room(demand: CollectiveCall, target: Message | Vector) -> Bytes:
    """Give room for the output; rank 0 gets none of an exscan, so its memory stays."""
    if demand.operation == "exscan" and demand.rank == 0:
        return target.data()
    return target.space()


def _in_place(demand: CollectiveCall, later: list[Event] | None) -> tuple[Bytes, Bytes]:
    """Give input and output of a rank that uses one buffer for both."""
    source, target = demand.source, demand.target
    if target is None:  # the root of a scatter
        assert source is not None
        whole = source.data(later)
        return whole, whole[_own(demand)]
    if source is not None:  # one buffer, of which the output is the first block
        return source.data().copy(), target.space()
    whole = target.data(later)
    if demand.operation in ("allgather", "allgatherv", "gather", "gatherv"):
        return whole[_own(demand)], whole
    return whole, whole


def _own(demand: CollectiveCall) -> slice:
    """Give the place of this rank's block among all blocks."""
    if demand.counts is None:
        return slice(demand.rank * demand.count, (demand.rank + 1) * demand.count)
    start = int(demand.counts[: demand.rank].sum())
    return slice(start, start + int(demand.counts[demand.rank]))


def _finish(demand: CollectiveCall, target: Message | Vector, taken: Bytes) -> Callable[[], None]:
    """Give what is left to do when the output is there."""
    divisor = demand.divisor()

    def finish() -> None:
        if divisor != 1:
            divide(taken, demand.dtype, divisor)
        if not target.direct:
            target.store(taken)
        demand.settle()

    return finish


def divide(data: Bytes, dtype: np.dtype[Any], divisor: int) -> None:
    """Divide elements in place, half-precision ones through float32.

    Parameters
    ----------
    data : ndarray of uint8
        The elements.
    dtype : numpy.dtype
        Their type.
    divisor : int
        At least 1.
    """
    elements = data.view(dtype)
    if dtype.itemsize == 2:
        elements[:] = elements.astype(np.float32) / np.float32(divisor)
    else:
        elements /= divisor
