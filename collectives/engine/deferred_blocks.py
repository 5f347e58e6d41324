"""Steps that run one by one in Python, with blocks known only when they start.

`DeferredBlocks` runs any step: it resolves the registers, allocates the memory
whose size they give, cuts the views, and acts.  Plans without registers,
events and leaves never come here.

A `LongMessage` of such a plan travels in pieces.  Its receiver may not know
the length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.engine.bound_plan import Bound, message
from closeranks.collectives.engine.error_translation import is_gone, is_over, quietly
from closeranks.collectives.engine.progress_answer import Poll, ProgressAnswer
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.apply_kernels import KERNELS
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.schedule import Apply, Kind, Leaf
from closeranks.comms.mpi import messages
from closeranks.comms.result_memory import RESULTS
from closeranks.errors import PlanError

if TYPE_CHECKING:
    from closeranks.collectives.engine.execution import Execution


Bytes = NDArray[np.uint8]

#: Pieces of a message of unknown length that are received into one array.
_PIECES_A_ROOM: Final = 16


class LongMessage:
    """One end of a message in pieces, looked at until all are through.

    Local.

    Parameters
    ----------
    traffic : MPI.Intracomm
        What carries it.
    peer, tag : int
        The other end, and what tells messages apart.
    longest : int
        Bytes of all pieces but the last.
    sending : bool
        Whether it is sent.
    """

    def __init__(
        self, traffic: MPI.Intracomm, peer: int, tag: int, longest: int, *, sending: bool
    ) -> None:
        self._traffic, self._peer, self._tag, self._sending = traffic, peer, tag, sending
        self._longest = longest
        self._requests: deque[MPI.Request] = deque()
        self._rooms: list[Bytes] = []
        self._met = 0
        self._finish: Callable[[], None] | None = None

    def post(self, data: Bytes, finish: Callable[[], None] | None = None) -> ProgressAnswer:
        """Post all pieces of a message whose length is known; ``finish`` runs at the end."""
        start = self._traffic.Isend if self._sending else self._traffic.Irecv
        self._finish = finish
        for piece in messages.cut_openly(data.nbytes, self._longest):
            self._requests.append(start(message(data[piece]), self._peer, self._tag))
        return ProgressAnswer.WAITING

    def meet(self, arrived: MPI.Message, nbytes: int) -> None:
        """Receive a piece that is not the last one."""
        if self._met % (nbytes * _PIECES_A_ROOM) == 0:
            self._rooms.append(np.empty(nbytes * _PIECES_A_ROOM, np.uint8))
        first = self._met % (nbytes * _PIECES_A_ROOM)
        self._requests.append(arrived.Irecv(message(self._rooms[-1][first : first + nbytes])))
        self._met += nbytes

    @property
    def met(self) -> int:
        """Bytes of the pieces that were met so far."""
        return self._met

    def end(self, arrived: MPI.Message, whole: Bytes) -> None:
        """Receive the last piece, now that there is room for the whole."""
        met, rooms = self.met, self._rooms
        self._requests.append(arrived.Irecv(message(whole[met:])))

        def finish() -> None:
            first = 0
            for room in rooms:
                last = min(first + room.nbytes, met)
                whole[first:last] = room[: last - first]
                first = last

        self._finish = finish

    @property
    def ended(self) -> bool:
        """Whether all pieces are known."""
        return self._finish is not None

    def look(self) -> ProgressAnswer:
        """Look whether all pieces are through; never blocks."""
        requests = self._requests
        while requests and is_over(requests[0]):  # they mostly end in their order
            requests.popleft()
        if requests:
            return ProgressAnswer.WAITING
        if self._finish is not None:
            self._finish()
        self._rooms.clear()
        return ProgressAnswer.DONE

    def cancel(self) -> None:
        """Give up what was to be received.  Local."""
        for request in () if self._sending else self._requests:
            quietly(request.Cancel)

    def is_held(self) -> bool:
        """Whether MPI has its memory still; never blocks."""
        self._requests = deque(one for one in self._requests if not is_gone(one))
        return bool(self._requests)


Array = NDArray[Any]


class DeferredBlocks:
    """Registers and lazily sized buffers of one execution.

    Parameters
    ----------
    bound : Bound
        The plan and its memory.
    execution : Execution
        Whose steps these are; posts the messages.

    Attributes
    ----------
    registers : list of int or None
        Values; None until set.
    memory : list of ndarray or None
        `Bound.memory`, with buffers added as registers size them.
    """

    __slots__ = ("_long", "bound", "execution", "memory", "registers")

    def __init__(self, bound: Bound, execution: Execution) -> None:
        self.bound, self.execution = bound, execution
        self.registers: list[int | None] = [None] * len(bound.table.registers)
        self.memory = list(bound.memory)
        given = bound.memory[INPUT]
        items = int(bound.table.buffers[INPUT, 0])
        if items < 0 and given is not None:
            self.set(~items, len(given))
        self._long: dict[int, LongMessage] = {}

    def start(self, step: int) -> Poll | None:
        """Start a step of any kind.

        Returns
        -------
        callable or None
            What to look at until it is done; None if it is done already or its
            message has been posted.
        """
        row = self.bound.table.rows[step].tolist()
        kind = row[columns.KIND]
        if kind == Kind.SEND:
            packed = _packed(self._view(_block(row, columns.BLOCK)))
            return self._post(step, packed, sending=True)
        if kind == Kind.RECEIVE:
            return self._receive(step, _block(row, columns.BLOCK))
        if kind == Kind.EVENT:
            event = self.bound.events[row[columns.PEER]]
            return lambda: ProgressAnswer.DONE if event() else ProgressAnswer.WAITING
        if kind in (Kind.NATIVE, Kind.SHARED):
            return self._leaf(step, row)
        if kind == Kind.APPLY:
            self._apply(step, row)
        else:
            self._move(row, reducing=kind == Kind.REDUCE)
        return None

    def members(self, steps: list[int]) -> tuple[int, ...]:
        """Return the other ranks that the leaves among ``steps`` run with."""
        table = self.bound.table
        ranks = set()
        for step in steps:
            action = int(table.rows[step, columns.ACTION])
            leaf = table.actions[action] if action >= 0 else None
            if isinstance(leaf, Leaf):
                ranks |= set(leaf.members) - {self.bound.rank}
        return tuple(sorted(ranks))

    def set(self, register: int, value: int) -> None:
        """Give a register its value; raises PlanError above its bound."""
        bound = int(self.bound.table.registers[register])
        if not 0 <= value <= bound:
            raise PlanError(
                self.execution.operation,
                f"register {register} became {value}, at most {bound} was declared",
            )
        self.registers[register] = value

    def _value(self, number: int) -> int:
        if number >= 0:
            return number
        value = self.registers[~number]
        if value is None:
            raise PlanError(self.execution.operation, f"register {~number} is read unset")
        return value

    def _view(self, block: Block) -> Array:
        """Resolve a block and cut it; allocates its buffer if a register sizes it."""
        if self.memory[block.buffer] is None:
            items = self._value(int(self.bound.table.buffers[block.buffer, 0]))
            if block.buffer == OUTPUT:  # the caller keeps it
                self.memory[OUTPUT] = RESULTS.array(items, np.uint8)
            else:
                self.memory[block.buffer] = self.bound.spare(block.buffer, items)
        start, count = self._value(block.start), self._value(block.count)
        placed = block._replace(start=start, count=count)
        view = self.bound.view(placed, self.memory)
        if view.size != count * block.repeat:
            raise PlanError(self.execution.operation, f"{placed} leaves its buffer")
        return view

    def _receive(self, step: int, block: Block) -> Poll | None:
        if block.count < 0 and self.registers[~block.count] is None:
            return lambda: self._meet(step, block)
        view = self._view(block)
        if view.ndim == 1:
            return self._post(step, view, sending=False)
        packed = np.empty(view.shape, view.dtype)
        return self._post(step, packed.reshape(-1), lambda: np.copyto(view, packed), sending=False)

    def _post(
        self,
        step: int,
        data: Array,
        finish: Callable[[], None] | None = None,
        *,
        sending: bool,
    ) -> Poll | None:
        """Post a message of known length; ``finish`` runs when it is through."""
        if sending:
            sent, peer = self.execution.sent, self.bound.peers[step]
            sent[peer] = sent.get(peer, 0) + data.nbytes
        if data.nbytes >= self.bound.longest_piece(self.bound.peers[step]):
            long = self._long_message(step, sending=sending)
            long.post(data.view(np.uint8), finish)
            return long.look
        self.execution.post(step, message(data), sending=sending)
        if finish is not None:
            self.execution.once_done(step, finish)
        return None

    def _long_message(self, step: int, *, sending: bool) -> LongMessage:
        if step not in self._long:
            traffic, peer = self.bound.world.traffic, self.bound.peers[step]
            tag, longest = self.execution.tag(step), self.bound.longest_piece(peer)
            self._long[step] = LongMessage(traffic, peer, tag, longest, sending=sending)
        return self._long[step]

    def cancel(self) -> None:
        """Give up what was to be received in pieces.  Local."""
        for long in self._long.values():
            long.cancel()

    def is_held(self) -> bool:
        """Whether MPI has memory of messages in pieces still; never blocks."""
        return any(long.is_held() for long in self._long.values())

    def _meet(self, step: int, block: Block) -> ProgressAnswer:
        """Look for a message of unknown size; its size sets the register."""
        bound, status, long = self.bound, MPI.Status(), self._long.get(step)
        if long is not None and long.ended:
            return long.look()
        traffic, tag, peer = bound.world.traffic, self.execution.tag(step), bound.peers[step]
        longest, nbytes, arrived = bound.longest_piece(peer), 0, None
        while arrived is None:
            arrived = traffic.Improbe(peer, tag, status)
            if arrived is None:
                return ProgressAnswer.WAITING
            nbytes = status.Get_count(MPI.BYTE)
            if nbytes >= longest:  # and another piece follows
                long = self._long_message(step, sending=False)
                long.meet(arrived, nbytes)
                arrived = None
        before = 0 if long is None else long.met
        self.set(~block.count, (before + nbytes) // bound.type_of(block.buffer).itemsize)
        view = self._view(block)
        if long is not None:
            long.end(arrived, view.view(np.uint8))
            return long.look()
        self.execution.follow(step, arrived.Irecv(message(view)))
        return ProgressAnswer.POSTED

    def _move(self, row: list[int], *, reducing: bool) -> None:
        source = _packed(self._view(_block(row, columns.SOURCE)))
        block = self._view(_block(row, columns.BLOCK))
        if not reducing:
            np.copyto(block, source.reshape(block.shape))
            return
        target = _packed(block)
        assert self.bound.reducer is not None, "this plan reduces: bind it with a reducer"
        self.bound.reducer(source, target)
        if target is not block:
            np.copyto(block, target.reshape(block.shape))

    def _apply(self, step: int, row: list[int]) -> None:
        table = self.bound.table
        action = table.actions[row[columns.ACTION]]
        assert isinstance(action, Apply)
        first, n_reads = row[columns.OPERANDS], row[columns.N_READS]
        operands = table.operands[first : first + n_reads + row[columns.N_WRITES]].tolist()
        views = [self._view(Block(*operand)) for operand in operands]
        arrays = [_packed(view) for view in views]
        given = self._arrived(step, row)
        began = perf_counter()
        answer = KERNELS[action.kernel](*given, *arrays)
        self.execution.kernel_s += perf_counter() - began
        self.execution.kernel_bytes += sum(array.nbytes for array in arrays[n_reads:])
        for view, array in zip(views[n_reads:], arrays[n_reads:], strict=True):
            if array is not view:
                np.copyto(view, array.reshape(view.shape))
        numbers = () if answer is None else answer if isinstance(answer, tuple) else (answer,)
        for register, number in zip(action.sets, numbers, strict=True):
            self.set(register, int(number))

    def _arrived(self, step: int, row: list[int]) -> tuple[NDArray[np.bool_], ...]:
        """Which steps waited for are done, where not all need to be."""
        first, n_after = row[columns.AFTER], row[columns.N_AFTER]
        if self.bound.need[step] == n_after:
            return ()
        done = self.execution.done
        earlier = self.bound.table.after[first : first + n_after].tolist()
        return (np.array([done[other] for other in earlier], np.bool_),)

    def _leaf(self, step: int, row: list[int]) -> Poll:
        source = _packed(self._view(_block(row, columns.SOURCE)))
        block = self._view(_block(row, columns.BLOCK))
        packed = _packed(block)
        if packed is not block:
            self.execution.once_done(step, lambda: np.copyto(block, packed.reshape(block.shape)))
        return self.bound.native[step].start(self.execution, step, source, packed)


def _block(row: list[int], column: int) -> Block:
    return Block(*row[column : column + 5])


def _packed(view: Array) -> Array:
    """Return a 1-D view where the items lie side by side, else a packed copy."""
    return view if view.ndim == 1 else view.reshape(-1)
