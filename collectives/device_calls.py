"""Algorithm "nccl": collectives that devices do among themselves.

Asked for by name, on every rank.  The group of devices is made at the first
such call, by all ranks, and belongs to the world of the communicator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from closeranks.collectives.context import BY_DEVICES, NCCL
from closeranks.collectives.demand import Demand
from closeranks.collectives.operations import MEAN
from closeranks.collectives.problem import REDUCING
from closeranks.comms.message import Message
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.world import World
    from closeranks.comms.device import DeviceArray, DeviceGroup

_OPS = frozenset({"SUM", "PROD", "MIN", "MAX"})
_TYPES = frozenset({
    "int8", "uint8", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "bfloat16",
})  # fmt: skip
#: Why it cannot serve other calls.
ELSEWHERE = "it is for blocking calls of arrays on devices, a device for every rank"


class DeviceCalls:
    """The calls of one communicator that devices do.

    Parameters
    ----------
    open_world : callable
        Gives the world of the communicator; collective at first use.
    deterministic : bool
        Whether it may do nothing: NCCL orders sums as it likes.
    """

    def __init__(self, open_world: Callable[[], World], *, deterministic: bool) -> None:
        self._open_world, self._deterministic = open_world, deterministic
        self._group: DeviceGroup | None = None
        self._device = -1

    def serve(self, demand: Demand) -> None:
        """Put a call on the caller's stream; the host waits for nothing.

        Collective at the first call.

        Parameters
        ----------
        demand : Demand
            The call.

        Raises
        ------
        UsageError
            If the call is not for it (local).
        Unavailable
            On every rank, if one has no NCCL, or two share a device.
        """
        problem = "this communicator is deterministic" if self._deterministic else None
        problem = problem or _objection(demand)
        if problem:
            raise UsageError(demand.operation, f"algorithm {NCCL!r} cannot: {problem}",
                             "pass algorithm='auto'")  # fmt: skip
        arrays = _arrays(demand)
        world = self._open_world()
        world.check(demand.operation)
        if self._group is None:
            self._group, self._device = _joined(world, arrays[0]), arrays[0].device
        if arrays[0].device != self._device:
            raise UsageError(demand.operation, f"arrays of device {arrays[0].device}, the first "
                             f"were of device {self._device}", "keep to one")  # fmt: skip
        stream = _entered(arrays)
        _put(self._group, demand, stream)
        _left(arrays, stream)


def _objection(demand: Demand) -> str | None:
    """Say why devices cannot do a call."""
    if demand.operation not in BY_DEVICES:
        return f"it has no {demand.operation}"
    parts = [part for part in (demand.source, demand.target) if part is not None]
    devices = {None if part.memory.device is None else part.memory.device.device for part in parts}
    if None in devices or len(devices) != 1:
        return "its arrays must all lie on one device"
    if not all(isinstance(part, Message) and part.as_it_is for part in parts):
        return "its arrays must have no gaps, and travel as they are"
    if demand.operation not in REDUCING:
        return None
    name = demand.reducer.name if demand.reducer else None
    if name not in _OPS or demand.dtype.name not in _TYPES:
        return f"it does not reduce {demand.dtype} by this op"
    if demand.operation == "reduce_scatter_block" and demand.in_place:
        return "it has no reduce_scatter_block in place"
    return None


def _arrays(demand: Demand) -> list[DeviceArray]:
    """Give the arrays of a call, the one that takes the result first."""
    found = [part.memory.device for part in (demand.target, demand.source) if part is not None]
    return [array for array in found if array is not None]


def _joined(world: World, array: DeviceArray) -> DeviceGroup:
    """Make the group of all ranks' devices; collective."""
    comm, runtime, device = world.comm, array.runtime, array.device
    wrong = runtime.lacks_groups()
    said = comm.allgather(("" if wrong else _name(array), wrong))
    for rank, (_, problem) in enumerate(said):
        if problem:
            raise Unavailable(f"algorithm {NCCL!r} (rank {rank}: {problem})",
                              "pass algorithm='auto'")  # fmt: skip
    names = [name for name, _ in said]
    shared = next((name for name in names if names.count(name) > 1), None)
    if shared is not None:
        ranks = [rank for rank, name in enumerate(names) if name == shared]
        raise Unavailable(f"algorithm {NCCL!r} (ranks {ranks} share device {shared})",
                          "give every rank its own, or pass algorithm='auto'")  # fmt: skip
    identity = comm.bcast(runtime.group_id() if comm.rank == 0 else None)
    return world.own(runtime.group(identity, comm.rank, comm.size, device))


def _name(array: DeviceArray) -> str:
    """Name an array's device as no other one of the job is named."""
    return f"{os.uname().nodename} {array.runtime.name_of(array.device)}"


def _entered(arrays: list[DeviceArray]) -> int:
    """Choose the stream: the result's; it waits for the others."""
    first = arrays[0]
    for other in arrays[1:]:
        if other.stream != first.stream:
            event = other.runtime.record(other.stream, other.device)
            first.runtime.hold(first.stream, event, first.device)
    return first.stream


def _left(arrays: list[DeviceArray], stream: int) -> None:
    """Let whoever uses the arrays next wait for the call."""
    for array in arrays:
        if array.stream == stream and array.is_ordered:
            continue
        event = array.runtime.record(stream, array.device)
        if array.is_ordered:
            array.runtime.hold(array.stream, event, array.device)
        else:
            event.synchronize()


def _put(group: DeviceGroup, demand: Demand, stream: int) -> None:
    """Call the group's own collective."""
    source, target = _place(demand.source), _place(demand.target)
    nbytes, count, dtype = demand.nbytes, demand.count, demand.dtype.name
    op = "MEAN" if demand.op is MEAN else demand.reducer.name if demand.reducer else None
    match demand.operation:
        case "bcast":
            group.bcast(source or target, nbytes, demand.root, stream)
        case "allgather":
            group.allgather(source or target + demand.rank * nbytes, target, nbytes, stream)
        case "allreduce":
            group.allreduce(source or target, target, count, dtype, str(op), stream)
        case "reduce":
            there = source or target
            group.reduce(there, target or there, count, dtype, str(op), demand.root, stream)
        case _:
            group.reduce_scatter(source, target, count, dtype, str(op), stream)


def _place(part: object) -> int:
    """Give the address of a message; 0 where there is none."""
    if not isinstance(part, Message) or part.memory.device is None:
        return 0
    return part.memory.device.pointer + part.offset
