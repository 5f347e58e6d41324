"""Long vectors on devices, in pieces that overlap.

While one is combined, the next is copied out and the one before copied back.
Each piece is a call of its own, served like any other, on pinned host memory.
All ranks cut alike, also those whose buffers lie on the host: whether vectors
of a size are cut is agreed once, at the first call of that size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.arguments.native_handover import agreed_max, is_straight
from closeranks.collectives.engine.call_counters import LIBRARY, PIECES, WHOLE
from closeranks.collectives.selection.call_options import AMONG_DEVICES, AUTO, NCCL
from closeranks.collectives.selection.chooser import NATIVE
from closeranks.comms.buffers.array_memory import Bytes, Memory
from closeranks.comms.buffers.buffer_spec import Message
from closeranks.comms.buffers.datatype import Element, element
from closeranks.comms.gpu.pinned_staging import Span, lanes

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import Demand
    from closeranks.collectives.dispatch.device_collectives import DeviceCalls
    from closeranks.comms.gpu.device_array import DeviceArray, Event

#: What can be cut: whatever is done to an element depends on no other one.
OPERATIONS = frozenset({"allreduce", "bcast", "reduce"})
#: Bytes from which vectors are cut, and of a piece.
LONG: int = 16 << 20
PIECE: int = 4 << 20
#: Pieces that have pinned memory at the same time.
_SLOTS: Final = 2
_BYTE = np.dtype(np.uint8)


class Relay:
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
        self, demand: Demand, wanted: str, serve: Callable[[Demand], str], *, timed: bool
    ) -> str:
        """Do a blocking call, in pieces or whole.

        Collective at the first call of an operation and a size.

        Parameters
        ----------
        demand : Demand
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

    def _agrees(self, demand: Demand) -> bool:
        """Tell whether at the first call of this size some rank had it on a device."""
        key = demand.operation, demand.nbytes
        if key not in self._is_cut:
            self._is_cut[key] = agreed_max(self._plain, [float(demand.on_device)])[0] > 0
        return self._is_cut[key]

    def _run(self, demand: Demand, serve: Callable[[Demand], str]) -> str:
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


def in_time(demand: Demand, ready: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    """Prepare a call; where devices copy for that, when it runs: it costs that.

    Local.

    Parameters
    ----------
    demand : Demand
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


def _cuts(demand: Demand) -> Iterator[_Cut]:
    """Cut a vector as every rank does: by what they agree on."""
    size = demand.nbytes // demand.count
    most = max(PIECE // size, 1)
    for first in range(0, demand.count, most):
        yield _Cut(first, min(most, demand.count - first))


class _Ends:
    """Where the pieces of one call come from and where they go.

    Parameters
    ----------
    demand : Demand
        The call.
    """

    def __init__(self, demand: Demand) -> None:
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
        self._filled[slot] = lanes(self._source).read(
            self._source, [self._span(self._given, cut)], self._slots[slot], self._emptied[slot]
        )

    def piece(self, number: int, cut: _Cut) -> Demand:
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
        self._emptied[slot] = lanes(self._target).write(
            self._target, [self._span(self._taken, cut)], self._slots[slot]
        )

    def finish(self) -> None:
        """Let whoever uses the result next find it."""
        if self._target is not None:
            lanes(self._target).lead(self._target)
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


def _unit(demand: Demand) -> Element:
    """Say what pieces are counted in: elements where they are reduced, else bytes."""
    part = demand.source or demand.target
    if demand.operation == "bcast" or part is None:
        return element(None, _BYTE, demand.operation)
    return part.element


def _array(part: Message | None) -> DeviceArray | None:
    return None if part is None else part.memory.device


def _on_host(data: Bytes, unit: Element) -> Message:
    memory = Memory(data, unit.dtype or _BYTE, data.nbytes, True)
    return Message(memory, unit, data.nbytes // unit.extent, 0)


def _spec(part: Message | None) -> object:
    """Describe a piece in host memory to mpi4py."""
    return None if part is None else [part.data(), part.element.datatype or MPI.BYTE]
