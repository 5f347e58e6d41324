"""Algorithms "nccl" and "ipc": collectives that devices do among themselves.

Asked for by name, on every rank.  The group of devices is made at the first
such call, by all ranks, and belongs to the world of the communicator.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from closeranks.collectives.arguments.collective_call import Demand
from closeranks.collectives.fastpath.shm_call import make_way
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.reduction.op import MEAN
from closeranks.collectives.selection.call_options import BY_DEVICES, IPC, NCCL
from closeranks.comms.buffers.buffer_spec import Message
from closeranks.comms.gpu.cuda_ipc_group import HALF_BYTES, MARKS, DeviceNode
from closeranks.comms.wait import wait
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.init_state import Family
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.comms.gpu.device_array import Desk, DeviceArray, DeviceGroup, Runtime

_OPS = frozenset({"SUM", "PROD", "MIN", "MAX"})
_TYPES = frozenset({
    "int8", "uint8", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "bfloat16",
})  # fmt: skip
_ON_NODE = _TYPES - {"bfloat16"}
_REMEDY = "pass algorithm='auto'"
#: Why it cannot serve other calls.
ELSEWHERE = "it is for blocking calls of arrays on devices"


class DeviceCalls:
    """The calls of one communicator that devices do.

    Parameters
    ----------
    open_world : callable
        Gives the world of the communicator; collective at first use.
    family : Family
        Of the communicator.  Where it is deterministic NCCL may do nothing: it
        orders sums as it likes.
    """

    def __init__(self, open_world: Callable[[], World], family: Family) -> None:
        self._open_world, self._family = open_world, family
        self._groups: dict[str, tuple[DeviceGroup, int]] = {}

    def serve(self, demand: Demand, name: str) -> None:
        """Put a call on the caller's stream; the host waits for nothing.

        Collective at the first call.  Where ranks may die, an attempt waits for it
        before it votes.

        Parameters
        ----------
        demand : Demand
            The call.
        name : str
            "nccl" or "ipc".

        Raises
        ------
        UsageError
            If the call is not for it (local).
        Unavailable
            On every rank: for "nccl" if one has no NCCL, or two share a device,
            for "ipc" if they are on several nodes, or one cannot reach another's
            memory.
        """
        if not demand.nbytes:
            return
        unordered = self._family.deterministic and name == NCCL
        problem = "this communicator is deterministic" if unordered else None
        problem = problem or _objection(demand, name)
        if problem:
            raise UsageError(demand.operation, f"algorithm {name!r} cannot: {problem}", _REMEDY)
        arrays = _arrays(demand)
        world = self._open_world()
        world.check(demand.operation)
        if name not in self._groups:
            join = _joined if name == NCCL else _opened
            self._groups[name] = join(world, arrays[0]), arrays[0].device
        group, device = self._groups[name]
        if arrays[0].device != device:
            raise UsageError(demand.operation, f"arrays of device {arrays[0].device}, the first "
                             f"were of device {device}", "keep to one")  # fmt: skip
        stream = _entered(arrays)
        try:
            _put(group, demand, stream)
        except BaseException:  # the ranks are out of step now
            world.revoke()
            raise
        _left(arrays, stream)
        if self._family.attempt is not None:
            done = arrays[0].runtime.record(stream, device)
            self._family.attempt.follow_stream((device, stream), done, self._family.world, world)


def _objection(demand: Demand, algorithm: str) -> str | None:
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
    fits = demand.dtype.name in (_TYPES if algorithm == NCCL else _ON_NODE)
    if name not in _OPS or not fits:
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
            raise Unavailable(f"algorithm {NCCL!r} (rank {rank}: {problem})", _REMEDY)
    names = [name for name, _ in said]
    shared = next((name for name in names if names.count(name) > 1), None)
    if shared is not None:
        ranks = [rank for rank, name in enumerate(names) if name == shared]
        raise Unavailable(f"algorithm {NCCL!r} (ranks {ranks} share device {shared})",
                          "give every rank its own, or pass algorithm='auto'")  # fmt: skip
    identity = comm.bcast(runtime.group_id() if comm.rank == 0 else None)
    return world.own(runtime.group(identity, comm.rank, comm.size, device))


def _opened(world: World, array: DeviceArray) -> DeviceGroup:
    """Share memory among all ranks' devices; collective."""
    comm, runtime, device = world.comm, array.runtime, array.device
    if world.node.size < world.size:  # on every rank
        raise Unavailable(f"algorithm {IPC!r} (ranks on several nodes)", _REMEDY)
    own, problem = _tried(lambda: runtime.desk(2 * HALF_BYTES, MARKS, device))
    said = comm.allgather((problem, () if own is None else own.handles))
    if not any(wrong for wrong, _ in said):
        tried = [
            (own, "") if rank == comm.rank else _tried(partial(runtime.opened, handles, device))
            for rank, (_, handles) in enumerate(said)
        ]
        problem = next((wrong for _, wrong in tried if wrong), "")
        desks = [desk for desk, _ in tried if desk is not None]
        if not any(problems := comm.allgather(problem)):
            return world.own(_group(world, runtime, desks, device))
        for desk in desks:
            if desk is not own:
                desk.close()
        comm.Barrier()  # now nobody has it open
        said = [(wrong, ()) for wrong in problems]
    if own is not None:
        own.close()
    rank, wrong = next((rank, wrong) for rank, (wrong, _) in enumerate(said) if wrong)
    raise Unavailable(f"algorithm {IPC!r} (rank {rank}: {wrong})", _REMEDY)


def _group(world: World, runtime: Runtime, desks: list[Desk], device: int) -> DeviceNode:
    """Make the group of ranks that have opened each other's memory; collective."""
    meeting = world.own(world.comm.Dup())

    def meet() -> None:
        wait(
            meeting.Ibarrier().Test,
            progress=partial(make_way, world),
            abort=lambda: world.check(IPC),
        )

    return DeviceNode(
        runtime, desks, world.rank, device, meet, lambda: world.revoked, half_bytes=HALF_BYTES
    )


def _tried(make: Callable[[], Desk]) -> tuple[Desk | None, str]:
    """Make a desk, or say why there is none."""
    try:
        return make(), ""
    except Exception as error:  # whatever it is: the others wait to be told
        return None, f"{type(error).__name__}: {error}"


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
