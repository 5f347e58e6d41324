"""Is a plan right?  All its ranks in one process, in adversarial order.

Sends are unbuffered, ready steps (and events) happen in random order, and
messages between two ranks match by slot in the order in which they were
posted.  A lucky order may hide errors; `races` looks for these in the graph.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.races import find_race
from closeranks.collectives.builders.leaf_expansions import expand
from closeranks.collectives.plans.apply_kernels import KERNELS
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Apply, Kind, Step
from closeranks.comms import argument
from closeranks.errors import PlanError, UsageError

#: ``reduce(left, right)`` gives the combination of two arrays.
Reduction = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
_UNITS = {1: np.uint8, 4: np.int32, 8: np.int64}


def simulate(
    plan: Plan,
    inputs: Sequence[NDArray[Any]],
    *,
    op: Reduction = np.add,
    seed: int = 0,
    in_place: bool = False,
) -> list[NDArray[Any]]:
    """Run a plan on all its ranks in one process.

    Local; communicates nothing.

    Parameters
    ----------
    plan : Plan
        The plan.
    inputs : sequence of ndarray
        One a rank, 1-D, of any one dtype (objects too), as long as
        ``plan.problem.input_items(rank)`` says; never changed.
    op : callable
        ``op(left, right)``, for reducing operations.
    seed : int
        Chooses one order among the possible ones.
    in_place : bool
        Lay each rank's input into its place in the output, as `IN_PLACE` does.

    Returns
    -------
    list of ndarray
        The output of every rank.

    Raises
    ------
    UsageError
        If an argument is no such thing.
    PlanError
        On a deadlock, an ambiguous or mismatched message, a race, or a read of
        items that no step wrote: with the rank, the step and the block.
    """
    argument.instance("simulate", "plan", plan, Plan, "give what collectives.plan has made")
    argument.instance("simulate", "inputs", inputs, Sequence, "give a list of arrays, one a rank")
    if not callable(op):
        raise UsageError("simulate", f"op is {argument.shown(op)}", "give a function of two arrays")
    order = random.Random(argument.whole("simulate", "seed", seed))
    run = _Run(plan, inputs, op, order, in_place=in_place)
    run.go()
    for rank in run.ranks:
        find_race(rank.number, rank.steps, rank.touched, rank.given)
    return [rank.arrays[1] for rank in run.ranks]


def moves(plan: Plan, inputs: Sequence[NDArray[Any]] | None = None) -> list[tuple[int, int, int]]:
    """Run a plan and list its messages.

    Parameters
    ----------
    plan : Plan
        The plan.
    inputs : sequence of ndarray, optional
        As for `simulate`; zeros if not given, and then kernels may not depend on
        the values.

    Returns
    -------
    list of (int, int, int)
        Sender, receiver and bytes of every message, in one possible order.
    """
    if inputs is None:
        inputs = [np.zeros(plan.problem.input_items(rank)) for rank in range(plan.size)]
    run = _Run(plan, inputs, np.add, random.Random(0), in_place=False)
    run.go()
    return run.moves


class _Rank:
    """One rank's steps and memory."""

    def __init__(self, plan: Plan, number: int, data: NDArray[Any], in_place: bool) -> None:
        self.number = number
        script, steps = plan.script(number)
        self.script, self.steps = expand(script, steps)
        self.registers: list[int | None] = [None] * len(script.registers)
        self.dtype = data.dtype
        wanted = script.buffers[0].items
        if wanted < 0 and data.ndim == 1:  # any number of bytes
            self.registers[~wanted] = len(data)
            wanted = len(data)
        if data.shape != (wanted,):
            raise PlanError(
                str(plan), f"rank {number}: input of shape {data.shape}, not ({wanted},)"
            )
        self.is_open = script.buffers[1].items < 0
        output = np.zeros(max(script.buffers[1].items, 0), dtype=data.dtype)
        self.alias = own_place(plan, number) if in_place else None
        if self.alias is not None:
            output[self.alias : self.alias + wanted] = data
        self.arrays: dict[int, NDArray[Any]] = {0: data.copy()}
        if not self.is_open:
            self.arrays[1] = output
        if self.alias is not None:
            self.arrays[0] = output[self.alias : self.alias + wanted]
        #: Items written before the plan starts, per buffer.
        self.given = {0: slice(0, wanted)}
        if self.alias is not None:
            self.given = {1: slice(self.alias, self.alias + wanted)}
        for buffer, values in self.script.constants.items():
            self.arrays[buffer] = values.copy()
            self.given[buffer] = slice(0, len(values))
        #: Reads and writes of every step, in items: (buffer, items, is_write).
        self.touched: list[list[tuple[int, NDArray[np.int64], bool]]] = [[] for _ in self.steps]
        self.left = [step.need for step in self.steps]
        self.done = [False] * len(self.steps)
        self.started = [False] * len(self.steps)
        self.successors: list[list[int]] = [[] for _ in self.steps]
        for index, step in enumerate(self.steps):
            for earlier in step.after:
                if not 0 <= earlier < index:
                    raise PlanError(str(plan), f"rank {number} step {index} waits for {earlier}")
                self.successors[earlier].append(index)

    def wrong(self, step: int, problem: str) -> PlanError:
        """Make the error for a step."""
        where = f"rank {self.number} step {step} ({self.steps[step]})"
        return PlanError("simulate", f"{where}: {problem}")

    def at_home(self, source: Block, block: Block) -> bool:
        """Whether a copy is one onto itself, which a binding drops."""
        if self.alias is not None and source.buffer == 0:
            source = source._replace(buffer=1, start=source.start + self.alias)
        return source == block

    def value(self, step: int, number: int) -> int:
        """Resolve a number or a register for a step."""
        if number >= 0:
            return number
        found = self.registers[~number]
        if found is None:
            raise self.wrong(step, f"reads register {~number} unset")
        return found

    def items(self, step: int, block: Block, count: int | None = None) -> NDArray[np.int64]:
        """Item indices of a step's block, in order."""
        start = self.value(step, block.start)
        if count is None:
            count = self.value(step, block.count)
        indices = np.arange(start, start + count)
        if block.repeat > 1:
            indices = (np.arange(block.repeat)[:, None] * block.stride + indices).ravel()
        capacity = len(self.array(step, block.buffer))
        if indices.size and (indices[0] < 0 or indices.max() >= capacity):
            raise self.wrong(step, f"{block} leaves its {capacity} items")
        return indices

    def array(self, step: int, buffer: int) -> NDArray[Any]:
        """Return a buffer, allocated at its first use."""
        if buffer not in self.arrays:
            items, unit = self.script.buffers[buffer]
            dtype = _UNITS[unit] if unit else self.dtype
            self.arrays[buffer] = np.zeros(self.value(step, items), dtype=dtype)
        return self.arrays[buffer]

    def read(self, step: int, block: Block) -> NDArray[Any]:
        """Give a copy of the items of ``block`` and note the read."""
        indices = self.items(step, block)
        self._note(step, block.buffer, indices, is_write=False)
        return self.array(step, block.buffer)[indices]

    def write(self, step: int, block: Block, values: NDArray[Any]) -> None:
        """Write values to ``block`` and note the write."""
        indices = self.items(step, block)
        if indices.size != len(values):
            raise self.wrong(step, f"{len(values)} items for {indices.size}")
        self._note(step, block.buffer, indices, is_write=True)
        self.array(step, block.buffer)[indices] = values

    def _note(self, step: int, buffer: int, indices: NDArray[np.int64], *, is_write: bool) -> None:
        if buffer == 0 and self.alias is not None:
            buffer, indices = 1, indices + self.alias
        self.touched[step].append((buffer, indices, is_write))


class _Run:
    """All ranks, the messages between them, and the events that may come next."""

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[NDArray[Any]],
        op: Reduction,
        order: random.Random,
        *,
        in_place: bool,
    ) -> None:
        if len(inputs) != plan.size:
            raise PlanError(str(plan), f"{len(inputs)} inputs for {plan.size} ranks")
        self.plan, self.op, self.order = plan, op, order
        self.ranks = [
            _Rank(plan, number, np.asarray(data), in_place) for number, data in enumerate(inputs)
        ]
        self.mail: dict[tuple[int, int, int], tuple[deque[int], deque[int]]] = {}
        self.possible: list[tuple[int, int, int]] = []  # (rank, step, receiver's step or -1)
        self.moves: list[tuple[int, int, int]] = []  # (sender, receiver, bytes)

    def go(self) -> None:
        """Let events happen in random order until none is left."""
        for rank in self.ranks:
            for index, left in enumerate(rank.left):
                if left == 0:
                    self._ready(rank, index)
        while self.possible:
            pick = self.order.randrange(len(self.possible))
            self.possible[pick], self.possible[-1] = self.possible[-1], self.possible[pick]
            number, step, partner = self.possible.pop()
            if partner >= 0:
                self._deliver(number, step, partner)
            else:
                self._start(self.ranks[number], step)
        self._check_finished()

    def _ready(self, rank: _Rank, index: int) -> None:
        if not rank.started[index]:
            rank.started[index] = True
            self.possible.append((rank.number, index, -1))

    def _finish(self, rank: _Rank, index: int) -> None:
        rank.done[index] = True
        for later in rank.successors[index]:
            rank.left[later] -= 1
            if rank.left[later] <= 0:
                self._ready(rank, later)

    def _start(self, rank: _Rank, index: int) -> None:
        step = rank.steps[index]
        if step.kind in (Kind.SEND, Kind.RECEIVE):
            self._post(rank, index, step)
            return
        if step.kind in (Kind.REDUCE, Kind.COPY):
            assert isinstance(step.source, Block)
            assert step.block is not None
            if step.kind == Kind.COPY and rank.at_home(step.source, step.block):
                self._finish(rank, index)
                return
            values = rank.read(index, step.source)
            if step.kind == Kind.REDUCE:
                values = self.op(values, rank.read(index, step.block))
            rank.write(index, step.block, values)
        elif step.kind == Kind.APPLY:
            self._apply(rank, index, step)
        self._finish(rank, index)

    def _apply(self, rank: _Rank, index: int, step: Step) -> None:
        assert isinstance(step.action, Apply)
        assert isinstance(step.source, tuple)
        early = step.need < len(step.after)
        arrived = [np.array([rank.done[i] for i in step.after])] if early else []
        reads = [rank.read(index, block) for block in step.source if isinstance(block, Block)]
        writes = [
            rank.array(index, block.buffer)[rank.items(index, block)]
            for block in step.action.writes
        ]
        answer = KERNELS[step.action.kernel](*arrived, *reads, *writes)
        for block, values in zip(step.action.writes, writes, strict=True):
            rank.write(index, block, values)
        numbers = () if answer is None else answer if isinstance(answer, tuple) else (answer,)
        if len(numbers) != len(step.action.sets):
            raise rank.wrong(index, f"{len(numbers)} results")
        for register, number in zip(step.action.sets, numbers, strict=True):
            if number > rank.script.registers[register]:
                raise rank.wrong(index, f"{number} above its bound")
            rank.registers[register] = int(number)

    def _post(self, rank: _Rank, index: int, step: Step) -> None:
        sending = step.kind == Kind.SEND
        pair = (rank.number, step.peer) if sending else (step.peer, rank.number)
        sends, receives = self.mail.setdefault((*pair, step.slot), (deque(), deque()))
        (sends if sending else receives).append(index)
        if sends and receives:
            self.possible.append((pair[0], sends.popleft(), receives.popleft()))

    def _deliver(self, number: int, sent: int, received: int) -> None:
        sender = self.ranks[number]
        outgoing = sender.steps[sent]
        receiver = self.ranks[outgoing.peer]
        incoming = receiver.steps[received]
        assert outgoing.block is not None
        assert incoming.block is not None
        values = sender.read(sent, outgoing.block)
        self._expect(receiver, received, incoming.block, len(values))
        receiver.write(received, incoming.block, values)
        unit = sender.script.buffers[outgoing.block.buffer].unit or self.plan.problem.itemsize
        self.moves.append((number, outgoing.peer, len(values) * unit))
        self._finish(sender, sent)
        self._finish(receiver, received)

    def _expect(self, rank: _Rank, index: int, block: Block, found: int) -> None:
        """Check a message's size against the receiver's room."""
        if block.count < 0 and rank.registers[~block.count] is None:
            limit = rank.script.registers[~block.count]
            if found > limit:
                raise rank.wrong(index, f"{found} items, at most {limit}")
            rank.registers[~block.count] = found
            return
        wanted = rank.value(index, block.count) * block.repeat
        if found != wanted:
            raise rank.wrong(index, f"a message of {found} items where {wanted} are expected")

    def _check_finished(self) -> None:
        waiting = [
            f"rank {rank.number} step {index} ({rank.steps[index]})"
            for rank in self.ranks
            for index, done in enumerate(rank.done)
            if not done
        ]
        if waiting:
            shown = "; ".join(waiting[:6])
            raise PlanError(str(self.plan), f"deadlock: {len(waiting)} steps wait: {shown}")


def own_place(plan: Plan, rank: int) -> int | None:
    """Where `IN_PLACE` finds the input of ``rank``; None where it does not apply."""
    problem = plan.problem
    match problem.operation:
        case "allreduce" | "scan" | "exscan":
            return 0
        case "reduce" | "bcast":
            return 0 if rank == problem.root else None
        case "allgather":
            return rank * problem.count
        case "gather":
            return rank * problem.count if rank == problem.root else None
        case "allgatherv":
            assert problem.counts is not None
            return int(problem.counts[:rank].sum())
        case "gatherv":
            assert problem.counts is not None
            return int(problem.counts[:rank].sum()) if rank == problem.root else None
    return None
