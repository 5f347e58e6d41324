"""Collectives of arrays on devices: in pieces, or among the devices themselves.

`DevicePipeline` serves blocking calls, and cuts long vectors into pieces.
While one piece is combined, the next is copied out and the one before is
copied back.  Each piece is a call of its own, on pinned host memory.  All
ranks cut alike, also ranks whose buffers lie on the host: at the first call of
a size the ranks agree whether vectors of that size are cut.

`DeviceCalls` serves the algorithms "nccl" and "ipc", which a program asks for
by name on every rank.  All ranks make the group of devices at the first such
call.  The group belongs to the world of the communicator.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.collective_call import CollectiveCall
from closeranks.collectives.arguments.native_handover import agreed_max, is_straight
from closeranks.collectives.engine.call_guard import LIBRARY, PIECES, WHOLE
from closeranks.collectives.engine.progress_engine import make_way
from closeranks.collectives.plans.collective import REDUCING
from closeranks.collectives.reduction.op import MEAN
from closeranks.collectives.selection.call_options import (
    AMONG_DEVICES,
    AUTO,
    BY_DEVICES,
    IPC,
    NATIVE,
    NCCL,
)
from closeranks.comms.buffers.array_memory import ArrayMemory, Bytes
from closeranks.comms.buffers.buffer_spec import Message
from closeranks.comms.buffers.datatype import Element, element
from closeranks.comms.gpu.cuda_ipc import HALF_BYTES, MARKS, CudaIpcGroup
from closeranks.comms.gpu.pinned_staging import Span, copy_streams
from closeranks.comms.wait import wait
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.comms.gpu.device_array import (
        DeviceArray,
        DeviceGroup,
        Event,
        IpcMemory,
        Runtime,
    )


#: What can be cut: whatever is done to an element depends on no other one.
OPERATIONS = frozenset({"allreduce", "bcast", "reduce"})
#: Bytes from which vectors are cut, and of a piece.
LONG: int = 16 << 20
PIECE: int = 4 << 20
#: Pieces that have pinned memory at the same time.
_SLOTS: Final = 2
_BYTE = np.dtype(np.uint8)


class DevicePipeline:
    """Serves the blocking calls of one communicator where there are devices.

    Parameters
    ----------
    plain : MPI.Intracomm
        Its ranks.
    reaches_devices : bool
        Whether the library takes device memory by itself, on all ranks.
    ways : Counter
        Counts which way arrays on devices go, see `Statistics.device`.
    calls : DeviceCalls
        Does what devices do among themselves.
    """

    def __init__(
        self,
        plain: MPI.Intracomm,
        reaches_devices: bool,
        ways: Counter[str],
        calls: DeviceCalls,
    ) -> None:
        self._plain, self._reaches, self._ways = plain, reaches_devices, ways
        self._calls = calls
        self._is_cut: dict[tuple[str, int], bool] = {}

    def serve(
        self,
        demand: CollectiveCall,
        wanted: str,
        serve: Callable[[CollectiveCall], str],
        *,
        timed: bool,
    ) -> str:
        """Do a blocking call, in pieces or whole.

        Collective at the first call of an operation and a size.

        Parameters
        ----------
        demand : CollectiveCall
            The call.
        wanted : str
            The algorithm that was asked for, or "auto".
        serve : callable
            Does a call that is not cut, and names its algorithm.
        timed : bool
            Whether it has a deadline, which pieces could not share.

        Returns
        -------
        str
            The algorithm.
        """
        if wanted in AMONG_DEVICES:
            self._calls.serve(demand, wanted)
            self._ways[wanted] += 1
            return wanted
        is_cut = not timed and self._may_cut(demand.operation, demand.nbytes, wanted)
        if is_cut and not demand.planned and self._agrees(demand):
            way, name = PIECES, self._run(demand, serve)
        else:
            name = serve(demand)
            way = LIBRARY if name == NATIVE and not timed and is_straight(demand) else WHOLE
        if demand.on_device:
            self._ways[way] += 1
        return name

    def way(self, operation: str, nbytes: int, wanted: str, name: str) -> str:
        """Say in words which way arrays on devices would go.  Local.

        Parameters
        ----------
        operation : str
            The operation.
        nbytes : int
            Bytes of the vector or of a block.
        wanted : str
            The algorithm that was asked for, or "auto".
        name : str
            The algorithm.

        Returns
        -------
        str
            For `Explanation.device`.
        """
        if name in AMONG_DEVICES:
            return f"among the devices, by {'NCCL' if name == NCCL else 'CUDA IPC'}"
        if self._reaches and name == NATIVE:
            return "the library takes them as they are"
        if self._may_cut(operation, nbytes, wanted):
            return f"through pinned memory, in {-(-nbytes // PIECE)} pieces"
        return "through pinned memory, whole"

    def _may_cut(self, operation: str, nbytes: int, wanted: str) -> bool:
        """Tell by what all ranks know whether vectors are cut."""
        if self._reaches and wanted in (AUTO, NATIVE):
            return False  # the library's own is a candidate, and takes the array whole
        return operation in OPERATIONS and nbytes >= LONG

    def _agrees(self, demand: CollectiveCall) -> bool:
        """Tell whether at the first call of this size some rank had it on a device."""
        key = demand.operation, demand.nbytes
        if key not in self._is_cut:
            self._is_cut[key] = agreed_max(self._plain, [float(demand.on_device)])[0] > 0
        return self._is_cut[key]

    def _run(self, demand: CollectiveCall, serve: Callable[[CollectiveCall], str]) -> str:
        """Do a call piece by piece; returns the algorithm of the last."""
        ends = _Ends(demand)
        name = ""
        cuts = list(_cuts(demand))
        ends.fetch(0, cuts[0])
        for number, cut in enumerate(cuts):
            if number + 1 < len(cuts):
                ends.fetch(number + 1, cuts[number + 1])
            name = serve(ends.piece(number, cut))
            ends.bring_back(number, cut)
        ends.finish()
        return name


def in_time(
    demand: CollectiveCall, ready: Callable[[], Callable[[], object]]
) -> Callable[[], object]:
    """Prepare a call; where devices copy for that, when it runs: it costs that.

    Local.

    Parameters
    ----------
    demand : CollectiveCall
        The call.
    ready : callable
        Prepares it, and gives what runs it.

    Returns
    -------
    callable
        Runs it.
    """
    return (lambda: ready()()) if demand.on_device else ready()


class _Cut(NamedTuple):
    """Elements of a piece: where they start, and how many."""

    first: int
    items: int


def _cuts(demand: CollectiveCall) -> Iterator[_Cut]:
    """Cut a vector as every rank does: by what they agree on."""
    size = demand.nbytes // demand.count
    most = max(PIECE // size, 1)
    for first in range(0, demand.count, most):
        yield _Cut(first, min(most, demand.count - first))


class _Ends:
    """Where the pieces of one call come from and where they go.

    Parameters
    ----------
    demand : CollectiveCall
        The call.
    """

    def __init__(self, demand: CollectiveCall) -> None:
        self._demand = demand
        self._unit = _unit(demand)
        self._stores: list[Callable[[], None]] = []
        source, target = demand.source, demand.target
        assert not (source is None and target is None)
        self._taken = self._plain(target, is_read=source is None and demand.in_place)
        self._given = self._plain(source, is_read=True)
        if source is None and demand.in_place:
            self._given = self._taken
        self._source, self._target = _array(self._given), _array(self._taken)
        runtime = self._source or self._target
        most = max(cut.items for cut in _cuts(demand)) * self._unit.extent
        self._slots = [runtime.runtime.pinned(most) for _ in range(_SLOTS)] if runtime else []
        self._filled: list[Event | None] = [None] * _SLOTS
        self._emptied: list[Event | None] = [None] * _SLOTS

    def fetch(self, number: int, cut: _Cut) -> None:
        """Start to copy a piece from the device, where it comes from one."""
        if self._source is None or self._given is None:
            return
        slot = number % _SLOTS
        self._filled[slot] = copy_streams(self._source).read(
            self._source, [self._span(self._given, cut)], self._slots[slot], self._emptied[slot]
        )

    def piece(self, number: int, cut: _Cut) -> CollectiveCall:
        """Give a piece as a call on host memory; waits until it is there."""
        source, target = self._part(self._given, cut), self._part(self._taken, cut)
        if self._slots:
            slot = self._ready(number, cut)
            source = slot if self._source is not None else source
            target = slot if self._target is not None else target
        demand = self._demand
        is_reduced = demand.operation != "bcast"
        in_place = is_reduced and target is not None and (source is target or demand.in_place)
        if in_place:
            source = None
        given: object = MPI.IN_PLACE if in_place else _spec(source)
        arguments = (given, _spec(target), *demand.arguments[2:])
        if not is_reduced:
            target = None if demand.source is not None else target
            arguments = (_spec(source or target), demand.root)
        return replace(
            demand, arguments=arguments, source=source, target=target, in_place=in_place,
            count=cut.items, nbytes=cut.items * self._unit.extent,
        )  # fmt: skip

    def bring_back(self, number: int, cut: _Cut) -> None:
        """Start to copy a piece to the device, where it goes to one."""
        if self._target is None or self._taken is None:
            return
        slot = number % _SLOTS
        self._emptied[slot] = copy_streams(self._target).write(
            self._target, [self._span(self._taken, cut)], self._slots[slot]
        )

    def finish(self) -> None:
        """Let whoever uses the result next find it."""
        if self._target is not None:
            copy_streams(self._target).lead(self._target)
        for store in self._stores:
            store()

    def _plain(self, part: object, *, is_read: bool) -> Message | None:
        """See a buffer as elements side by side, through a copy where they are not."""
        if part is None:
            return None
        assert isinstance(part, Message)
        unit, count = self._unit, part.nbytes // self._unit.extent
        if part.as_it_is:
            return Message(part.memory, unit, count, part.offset)
        packed = part.data() if is_read else part.space()
        if part is self._demand.target:
            self._stores.append(lambda: part.store(packed))
        return _on_host(packed, unit)

    def _part(self, whole: Message | None, cut: _Cut) -> Message | None:
        """Give the piece of a buffer, wherever it lies."""
        if whole is None:
            return None
        place = whole.offset + cut.first * self._unit.extent
        return Message(whole.memory, self._unit, cut.items, place)

    def _span(self, whole: Message, cut: _Cut) -> Span:
        extent = self._unit.extent
        return Span(whole.offset + cut.first * extent, 0, cut.items * extent)

    def _ready(self, number: int, cut: _Cut) -> Message:
        """Give the pinned memory of a piece when the host may use it."""
        slot = number % _SLOTS
        event = self._filled[slot] if self._source is not None else self._emptied[slot]
        if event is not None:
            event.synchronize()
        return _on_host(self._slots[slot][: cut.items * self._unit.extent], self._unit)


def _unit(demand: CollectiveCall) -> Element:
    """Say what pieces are counted in: elements where they are reduced, else bytes."""
    part = demand.source or demand.target
    if demand.operation == "bcast" or part is None:
        return element(None, _BYTE, demand.operation)
    return part.element


def _array(part: Message | None) -> DeviceArray | None:
    return None if part is None else part.memory.device


def _on_host(data: Bytes, unit: Element) -> Message:
    memory = ArrayMemory(data, unit.dtype or _BYTE, data.nbytes, True)
    return Message(memory, unit, data.nbytes // unit.extent, 0)


def _spec(part: Message | None) -> object:
    """Describe a piece in host memory to mpi4py."""
    return None if part is None else [part.data(), part.element.datatype or MPI.BYTE]


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

    def serve(self, demand: CollectiveCall, name: str) -> None:
        """Put a call on the caller's stream; the host waits for nothing.

        Collective at the first call.  Where ranks may die, an attempt waits for it
        before it votes.

        Parameters
        ----------
        demand : CollectiveCall
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


def _objection(demand: CollectiveCall, algorithm: str) -> str | None:
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


def _arrays(demand: CollectiveCall) -> list[DeviceArray]:
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
    own, problem = _tried(lambda: runtime.ipc_memory(2 * HALF_BYTES, MARKS, device))
    said = comm.allgather((problem, () if own is None else own.handles))
    if not any(wrong for wrong, _ in said):
        tried = [
            (own, "") if rank == comm.rank else _tried(partial(runtime.opened, handles, device))
            for rank, (_, handles) in enumerate(said)
        ]
        problem = next((wrong for _, wrong in tried if wrong), "")
        ipc_memories = [ipc_memory for ipc_memory, _ in tried if ipc_memory is not None]
        if not any(problems := comm.allgather(problem)):
            return world.own(_group(world, runtime, ipc_memories, device))
        for ipc_memory in ipc_memories:
            if ipc_memory is not own:
                ipc_memory.close()
        comm.Barrier()  # now nobody has it open
        said = [(wrong, ()) for wrong in problems]
    if own is not None:
        own.close()
    rank, wrong = next((rank, wrong) for rank, (wrong, _) in enumerate(said) if wrong)
    raise Unavailable(f"algorithm {IPC!r} (rank {rank}: {wrong})", _REMEDY)


def _group(
    world: World, runtime: Runtime, ipc_memories: list[IpcMemory], device: int
) -> CudaIpcGroup:
    """Make the group of ranks that have opened each other's memory; collective."""
    meeting = world.own(world.comm.Dup())

    def meet() -> None:
        wait(
            meeting.Ibarrier().Test,
            progress=partial(make_way, world),
            abort=lambda: world.check(IPC),
        )

    return CudaIpcGroup(
        runtime,
        ipc_memories,
        world.rank,
        device,
        meet,
        lambda: world.revoked,
        half_bytes=HALF_BYTES,
    )


def _tried(make: Callable[[], IpcMemory]) -> tuple[IpcMemory | None, str]:
    """Make an IPC memory, or say why there is none."""
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


def _put(group: DeviceGroup, demand: CollectiveCall, stream: int) -> None:
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
