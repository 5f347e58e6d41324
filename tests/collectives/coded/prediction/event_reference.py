"""Rounds followed micro-batch by micro-batch, without a shortcut, to compare with."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.work_sharing import next_micro_batch

Abandon = str


def whole_tasks(
    scheme: Scheme, factors: NDArray[np.float64], fixed_s: float, compute_s: float, abandon: Abandon
) -> list[float]:
    """Give seconds of each round of a scheme of whole tasks, by its own rules."""
    scheme = scheme.copy()
    now, free, per_round = 0.0, [0.0] * scheme.n, []
    for round, slow in enumerate(factors.tolist(), 1):
        tasks = scheme.tasks(round)
        loads = [sum(len(task.parts) for task in mine) / scheme.parts for mine in tasks]
        starts = [max(now, at) for at in free]
        took = [(fixed_s + compute_s * load) * factor if load else 0.0
                for load, factor in zip(loads, slow, strict=True)]  # fmt: skip
        ends = [start + length for start, length in zip(starts, took, strict=True)]
        finished = {worker for worker in range(scheme.n) if not loads[worker]}
        end = now
        for at, worker in sorted((ends[w], w) for w in range(scheme.n) if loads[w]):
            if not scheme.must_wait(round, finished):
                break
            finished.add(worker)
            end = at
        finished |= {w for w in range(scheme.n) if ends[w] <= end}
        for worker in range(scheme.n):
            scheme.deliver(round, worker, tasks[worker] if worker in finished else ())
            if worker in finished:
                continue
            at, pieces = starts[worker], max(1, round_half(scheme.micro * scheme.n * loads[worker]))
            if abandon == "now":
                at = end
            elif at < end:
                while at <= end + 1e-9 and at < ends[worker] - 1e-9:
                    at += took[worker] / (1 if abandon == "never" else pieces)
            free[worker] = at
        per_round.append(end - now)
        now = end
    return per_round


def round_half(value: float) -> int:
    return int(np.round(value))


def groups(
    scheme: PartialRepetition, factors: NDArray[np.float64], fixed_s: float, compute_s: float,
    abandon: Abandon,
) -> list[float]:  # fmt: skip
    """Give seconds of each round of groups that help each other."""
    now, free, per_round = 0.0, [0.0] * scheme.n, []
    for slow in factors.tolist():
        share = fixed_s + compute_s / scheme.n
        own = [max(now, at) + share * factor for at, factor in zip(free, slow, strict=True)]
        started = [max(now, at) for at in free]
        ends = []
        for group in scheme.groups:
            end = _one_group(
                group, free, now, [share * slow[w] / scheme.micro for w in group], scheme.micro,
                share / scheme.micro,
            )  # fmt: skip
            ends.append(end)
        end = max(ends)
        for worker in range(scheme.n):
            if abandon == "now":
                free[worker] = end
            elif abandon == "never" and started[worker] < end:
                free[worker] = max(free[worker], own[worker])
        per_round.append(end - now)
        now = end
    return per_round


def _one_group(
    group: tuple[int, ...], free: list[float], now: float, pieces: list[float], micro: int,
    grace: float,
) -> float:  # fmt: skip
    """Follow one group from each micro-batch to the next; changes when workers are free."""
    done, taken, idle_since = [0] * len(group), [0] * len(group), [float("inf")] * len(group)
    every = (1 << micro) - 1
    queue: list[tuple[float, int, int, int]] = []  # end, member, whose share, which of it
    for member, worker in enumerate(group):
        heapq.heappush(queue, (max(now, free[worker]), member, -1, -1))
    last = now

    def choose(member: int, at: float, push: Callable[[tuple[float, int, int, int]], None]) -> None:
        helps = at >= idle_since[member] + grace - 1e-12
        found = next_micro_batch(member, done, taken, micro, helps=helps)
        if found is None:
            if idle_since[member] == float("inf"):
                idle_since[member] = at
                push((at + grace, member, -1, -1))
            return
        if found[0] != member:
            taken[found[0]] |= 1 << found[1]
        free[group[member]] = at + pieces[member]
        push((at + pieces[member], member, *found))

    while any(one != every for one in done):
        at, member, whose, number = heapq.heappop(queue)
        if whose >= 0 and not done[whose] >> number & 1:
            done[whose] |= 1 << number
            last = at
        if all(one == every for one in done):
            break
        choose(member, at, lambda event: heapq.heappush(queue, event))
    for worker in group:
        free[worker] = max(free[worker], 0.0)
    return last
