"""The price of a plan: its time, and what crosses each level, on any topology.

Ranks of one class do the same, so one rank stands for each class: 16 384 ranks
of a ring are a handful of timelines.  The timelines run as discrete events in
Hockney's model, ``T = alpha + n beta`` a message, with one sending and one
receiving port a rank and level, and with a group's rails shared by those of
its ranks that send in the same slot.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.leaf_expansions import expand
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Kind, Schedule, Step
from closeranks.comms import argument
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.errors import UsageError


class Cost(NamedTuple):
    """The cost of a plan.

    Attributes
    ----------
    seconds : float
        Predicted time from the common start to the last rank's end.
    bytes_per_level : dict of str to int
        Level name -> bytes the busiest rank sends over it.
    messages_per_level : dict of str to int
        Level name -> messages the busiest rank sends over it.
    group_bytes_per_level : dict of str to int
        Level name -> bytes that leave the busiest group of the level (for
        "node": the bytes of all network cards of the node).
    """

    seconds: float
    bytes_per_level: dict[str, int]
    messages_per_level: dict[str, int]
    group_bytes_per_level: dict[str, int]


@dataclass(frozen=True)
class Speed:
    """The cost of a step beside the wire.

    Attributes
    ----------
    step_s : float
        Time of the interpreter for one step, seconds.
    reduce_s_per_byte, copy_s_per_byte : float
        Time to reduce and to copy a byte, seconds.
    kernel_s_per_byte : float
        Time of a kernel for a byte that it writes, seconds.
    """

    step_s: float = 0.0
    reduce_s_per_byte: float = 0.0
    copy_s_per_byte: float = 0.0
    kernel_s_per_byte: float = 0.0


def cost(
    plan: Plan,
    nbytes: int | None = None,
    *,
    speed: Speed | None = None,
    rank: int | None = None,
) -> Cost:
    """Price a plan on its topology; local, pure.

    Parameters
    ----------
    plan : Plan
        The plan.
    nbytes : int, optional
        Price it for ``count = nbytes / itemsize`` instead of its own count;
        not for v-operations, where counts are part of the plan.
    speed : Speed, optional
        Costs beside the wire; none by default, which gives the textbook forms.
    rank : int, optional
        Price the steps of this rank, as if all others did the like: for plans of
        which a rank knows its own part only.

    Returns
    -------
    Cost
        Seconds, and bytes and messages per level.

    Raises
    ------
    UsageError
        If ``nbytes`` is negative, no multiple of the element, or given for a
        v-operation.

    References
    ----------
    .. [1] Hockney, The communication challenge for MPP, Parallel Computing 1994.
    """
    argument.instance("cost", "plan", plan, Plan, "give what collectives.plan has made")
    if nbytes is not None:
        plan = _resized(plan, argument.whole("cost", "nbytes", nbytes))
    speed = Speed() if speed is None else speed
    argument.instance("cost", "speed", speed, Speed, "give a Speed, or none")
    first, inverse = _representatives(plan, rank)
    lines = [_Timeline(plan, int(rank)) for rank in first]
    shares = _Shares(plan.problem.topology, inverse, lines)
    return Cost(
        _Clock(plan.problem.topology, lines, inverse, shares, speed).run(),
        _busiest(plan.problem.topology, [line.sent_bytes for line in lines]),
        _busiest(plan.problem.topology, [line.sent_messages for line in lines]),
        shares.group_bytes(),
    )


def _representatives(plan: Plan, rank: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a rank of each class, and the class of each rank."""
    if rank is not None:
        return np.array([rank]), np.zeros(plan.size, np.int64)
    numbers, inverse = np.unique(plan.classes(), return_inverse=True)
    first = np.full(len(numbers), plan.size, dtype=np.int64)
    np.minimum.at(first, inverse, np.arange(plan.size))
    return first, inverse


def _resized(plan: Plan, nbytes: int) -> Plan:
    problem: Problem = plan.problem
    if problem.counts is not None:
        raise UsageError("cost", f"nbytes={nbytes} for {problem.operation}", "give counts= to plan")
    if nbytes * problem.size >= argument.MOST:
        raise UsageError("cost", f"nbytes={nbytes} over {problem.size} ranks",
                         f"stay below {argument.MOST} B in all")  # fmt: skip
    if nbytes % problem.itemsize:
        raise UsageError(
            "cost", f"nbytes={nbytes}", f"give a multiple of the element's {problem.itemsize} bytes"
        )
    return replace(plan, problem=replace(problem, count=nbytes // problem.itemsize))


def _busiest(topology: Topology, tables: list[dict[int, int]]) -> dict[str, int]:
    return {
        name: max((table.get(level, 0) for table in tables), default=0)
        for level, name in enumerate(topology.levels)
    }


class _Timeline:
    """The steps of one rank that stands for its class."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.rank = rank
        script, steps = plan.written(rank, plan.problem)
        self.script, self.steps = expand(script, steps)
        peers = np.array([step.peer for step in self.steps], dtype=np.int64)
        peers[peers < 0] = rank
        self.levels = plan.problem.topology.level_indices(np.full_like(peers, rank), peers).tolist()
        unit = plan.problem.itemsize
        self.nbytes = [_size(self.script, step.block, unit) for step in self.steps]
        self.sent_bytes: dict[int, int] = {}
        self.sent_messages: dict[int, int] = {}
        #: Sends per slot.
        self.sends: Counter[int] = Counter()
        for step, level, nbytes in zip(self.steps, self.levels, self.nbytes, strict=True):
            if step.kind == Kind.SEND:
                self.sent_bytes[level] = self.sent_bytes.get(level, 0) + nbytes
                self.sent_messages[level] = self.sent_messages.get(level, 0) + 1
                self.sends[step.slot] += 1


def _size(script: Schedule, block: Block | None, itemsize: int) -> int:
    if block is None:
        return 0
    count = block.count if block.count >= 0 else script.expected[~block.count]
    return count * block.repeat * (script.buffers[block.buffer].unit or itemsize)


class _Shares:
    """How many ranks of a group send over a level in one slot."""

    def __init__(
        self, topology: Topology, inverse: NDArray[np.int64], lines: list[_Timeline]
    ) -> None:
        self.topology, self.lines = topology, lines
        classes = len(lines)
        self.tables: list[NDArray[np.int64]] = []
        for level in range(len(topology.levels)):
            groups = topology.groups[level].astype(np.int64)
            cells = np.bincount(
                groups * classes + inverse, minlength=(int(groups.max()) + 1) * classes
            )
            # asked for indices NumPy leaves out to import its masked arrays, 15 ms
            table, _ = np.unique(cells.reshape(-1, classes), axis=0, return_index=True)
            self.tables.append(table)
        self.senders: dict[tuple[int, int], set[int]] = {}
        for number, line in enumerate(lines):
            for step, level in zip(line.steps, line.levels, strict=True):
                if step.kind == Kind.SEND:
                    self.senders.setdefault((level, step.slot), set()).add(number)
        self._known: dict[tuple[int, frozenset[int]], int] = {}

    def active(self, level: int, slot: int) -> int:
        """Most ranks of one group that send over ``level`` in ``slot``."""
        classes = frozenset(self.senders[level, slot])
        key = (level, classes)
        if key not in self._known:
            self._known[key] = int(self.tables[level][:, sorted(classes)].sum(axis=1).max())
        return self._known[key]

    def group_bytes(self) -> dict[str, int]:
        """Bytes that leave the busiest group, over its own level or further out."""
        found = {}
        for level, name in enumerate(self.topology.levels):
            out = np.array(
                [sum(n for at, n in line.sent_bytes.items() if at <= level) for line in self.lines]
            )
            found[name] = int((self.tables[level] @ out).max())
        return found


class _Clock:
    """Discrete events over the timelines."""

    def __init__(
        self,
        topology: Topology,
        lines: list[_Timeline],
        inverse: NDArray[np.int64],
        shares: _Shares,
        speed: Speed,
    ) -> None:
        self.topology, self.lines, self.inverse = topology, lines, inverse
        self.shares, self.speed = shares, speed
        self.ready: list[tuple[float, int, int]] = []
        self.left = [[step.need for step in line.steps] for line in lines]
        #: Latest end so far of what a step waits for.
        self.since = [[0.0] * len(line.steps) for line in lines]
        self.successors = [_successors(line.steps) for line in lines]
        self.sending: dict[tuple[int, int], float] = {}
        self.receiving: dict[tuple[int, int], float] = {}
        self.arrivals: dict[tuple[int, int], list[float]] = {}
        self.waiting: dict[tuple[int, int], list[tuple[int, float, int, int]]] = {}
        self.taken: dict[tuple[int, int, int], int] = {}
        self.links: dict[tuple[int, int], Link] = {}
        #: When each rank's interpreter has time for the next step.
        self.idle = [0.0] * len(lines)
        self.end = 0.0

    def run(self) -> float:
        """Return the time at which the last timeline ends."""
        for number, left in enumerate(self.left):
            for index, need in enumerate(left):
                if need == 0:
                    heapq.heappush(self.ready, (0.0, number, index))
        while self.ready or self._assume():
            if not self.ready:
                continue
            now, number, index = heapq.heappop(self.ready)
            now = self.idle[number] = max(now, self.idle[number]) + self.speed.step_s
            self._start(now, number, index)
        return self.end

    def _start(self, now: float, number: int, index: int) -> None:
        line = self.lines[number]
        step, nbytes = line.steps[index], line.nbytes[index]
        if step.kind == Kind.SEND:
            self._send(now, number, index)
        elif step.kind == Kind.RECEIVE:
            self._receive(now, number, index)
        elif step.kind == Kind.REDUCE:
            self._finish(now + nbytes * self.speed.reduce_s_per_byte, number, index)
        elif step.kind == Kind.APPLY:
            self.idle[number] = now + nbytes * self.speed.kernel_s_per_byte
            self._finish(self.idle[number], number, index)
        elif step.kind == Kind.COPY:
            self._finish(now + nbytes * self.speed.copy_s_per_byte, number, index)
        else:
            self._finish(now, number, index)

    def _wire(self, number: int, index: int) -> tuple[float, float]:
        """Latency and transfer time of a message, in seconds."""
        line = self.lines[number]
        step, level = line.steps[index], line.levels[index]
        link = self._link(line.rank, step.peer)
        rate = link.bytes_per_s or float("inf")
        if link.rails and (level, step.slot) in self.shares.senders:
            rate /= max(1.0, self.shares.active(level, step.slot) / link.rails)
        return link.start_s(line.nbytes[index]) or 0.0, line.nbytes[index] / rate

    def _link(self, rank: int, peer: int) -> Link:
        found = self.links.get((rank, peer))
        if found is None:
            found = self.links[rank, peer] = self.topology.link(rank, peer)
        return found

    def _send(self, now: float, number: int, index: int) -> None:
        line = self.lines[number]
        latency_s, transfer_s = self._wire(number, index)
        port = (number, line.levels[index])
        start = max(now, self.sending.get(port, 0.0))
        self.sending[port] = start + transfer_s
        key = (number, line.steps[index].slot)
        self.arrivals.setdefault(key, []).append(start + latency_s + transfer_s)
        self._finish(start + transfer_s, number, index)
        for waiter in self.waiting.pop(key, []):
            turn, since, other, receive = waiter
            if turn < len(self.arrivals[key]):
                self._arrive(since, self.arrivals[key][turn], other, receive)
            else:
                self.waiting.setdefault(key, []).append(waiter)

    def _receive(self, now: float, number: int, index: int) -> None:
        step = self.lines[number].steps[index]
        key = (int(self.inverse[step.peer]), step.slot)
        turn = self.taken.get((number, *key), 0)
        self.taken[(number, *key)] = turn + 1
        turn = max(0, min(turn, self.lines[key[0]].sends[step.slot] - 1))
        arrivals = self.arrivals.get(key, [])
        if turn < len(arrivals):
            self._arrive(now, arrivals[turn], number, index)
        else:
            self.waiting.setdefault(key, []).append((turn, now, number, index))

    def _arrive(self, since: float, arrival: float, number: int, index: int) -> None:
        line = self.lines[number]
        _, transfer_s = self._wire(number, index)
        port = (number, line.levels[index])
        end = max(since, arrival, self.receiving.get(port, 0.0) + transfer_s)
        self.receiving[port] = end
        self._finish(end, number, index)

    def _assume(self) -> bool:
        """Let the longest-waiting receive end as if its sender were ready with it."""
        if not self.waiting:
            return False
        key = min(self.waiting, key=lambda k: self.waiting[k][0][1])
        _, since, number, index = self.waiting[key].pop(0)
        if not self.waiting[key]:
            del self.waiting[key]
        latency_s, transfer_s = self._wire(number, index)
        self._arrive(since, since + latency_s + transfer_s, number, index)
        return True

    def _finish(self, now: float, number: int, index: int) -> None:
        if not self.lines[number].steps[index].optional:
            self.end = max(self.end, now)
        left, since = self.left[number], self.since[number]
        for later in self.successors[number][index]:
            left[later] -= 1
            since[later] = max(since[later], now)
            if left[later] == 0:
                heapq.heappush(self.ready, (since[later], number, later))


def _successors(steps: list[Step]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in steps]
    for index, step in enumerate(steps):
        for earlier in step.after:
            found[earlier].append(index)
    return found
