"""Steps that may not run in either order, but could.

Two steps of a rank that touch the same items, one of them writing, must be
ordered by the graph; two messages of one pair and slot must be posted in one
order only.  Both are read off the graph, so a lucky order hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.schedule import Kind, Step
from closeranks.errors import PlanError

Touch = tuple[int, "NDArray[np.int64]", bool]


def find_race(
    rank: int,
    steps: Sequence[Step],
    touched: Sequence[Sequence[Touch]],
    given: Mapping[int, slice],
) -> None:
    """Raise PlanError for the first race, ambiguity or unwritten read of a rank.

    Parameters
    ----------
    rank : int
        For the message.
    steps : sequence of Step
        The rank's steps.
    touched : sequence of sequence of (int, ndarray, bool)
        Per step: buffer, item indices, whether written.
    given : mapping of int to slice
        Items that hold the caller's data from the start, per buffer.
    """
    before = ancestors(steps)
    _check_posting(rank, steps, before)
    writer: dict[int, NDArray[np.int64]] = {}
    readers: dict[int, list[tuple[int, NDArray[np.int64]]]] = {}
    capacity: dict[int, int] = {}
    for touches in touched:
        for buffer, items, _ in touches:
            high = int(items.max()) + 1 if items.size else 0
            capacity[buffer] = max(capacity.get(buffer, 0), high)
    for buffer, items_of in capacity.items():
        writer[buffer] = np.full(items_of, -2, dtype=np.int64)
        if buffer in given:
            writer[buffer][given[buffer]] = -1
    for index, touches in enumerate(touched):
        partial = steps[index].need < len(steps[index].after)
        exempt = set(steps[index].after) if partial else set()
        for buffer, items, is_write in touches:
            _check_touch(
                rank, steps, index, before[index], exempt,
                buffer, items, is_write, writer[buffer], readers.setdefault(buffer, []),
            )  # fmt: skip


def ancestors(steps: Sequence[Step]) -> list[int]:
    """Per step the set (as bits) of steps that are done whenever it starts.

    Of a step that needs only some of ``after``, a step is surely done when so
    many of ``after`` imply it that ``need`` of them cannot do without.
    """
    before: list[int] = []
    for step in steps:
        implied = [before[i] | (1 << i) for i in step.after]
        spare = len(step.after) - step.need
        if spare == 0:
            bits = 0
            for mask in implied:
                bits |= mask
        else:
            bits = _at_least(implied, spare + 1)
        before.append(bits)
    return before


def _at_least(masks: Sequence[int], times: int) -> int:
    """Bits that stand in at least ``times`` of the masks."""
    reached = [0] * (times + 1)
    reached[0] = -1
    for mask in masks:
        for k in range(times, 0, -1):
            reached[k] |= reached[k - 1] & mask
    return reached[times]


def _check_posting(rank: int, steps: Sequence[Step], before: Sequence[int]) -> None:
    last: dict[tuple[int, int, int], int] = {}
    for index, step in enumerate(steps):
        if step.kind not in (Kind.SEND, Kind.RECEIVE):
            continue
        key = (step.kind, step.peer, step.slot)
        earlier = last.get(key)
        last[key] = index
        if earlier is None:
            continue
        if step.after and any(not (before[index] >> i) & 1 for i in steps[earlier].after):
            ordered = False
        else:
            ordered = bool(step.after) or not steps[earlier].after
        if not ordered and not (before[index] >> earlier) & 1:
            raise PlanError(
                "simulate",
                f"rank {rank}: ambiguous messages: step {earlier} ({steps[earlier]}) and"
                f" step {index} ({step}) may be posted in either order",
            )


def _check_touch(
    rank: int, steps: Sequence[Step], index: int, before: int, exempt: set[int],
    buffer: int, items: NDArray[np.int64], is_write: bool,
    writer: NDArray[np.int64], readers: list[tuple[int, NDArray[np.int64]]],
) -> None:  # fmt: skip
    for earlier in set(writer[items].tolist()):
        if earlier == -2 and not is_write:
            raise PlanError(
                "simulate",
                f"rank {rank}: step {index} ({steps[index]}) reads items of buffer {buffer}"
                " that nobody wrote",
            )
        if earlier >= 0 and earlier != index and earlier not in exempt:
            _check_order(rank, steps, earlier, index, before)
    if not is_write:
        readers.append((index, items))
        return
    hit = np.zeros(len(writer), dtype=bool)
    hit[items] = True
    kept = []
    for earlier, read in readers:
        if earlier == index or earlier in exempt:
            continue
        overlap = hit[read]
        if not overlap.any():
            kept.append((earlier, read))
            continue
        _check_order(rank, steps, earlier, index, before)
        if not overlap.all():
            kept.append((earlier, read[~overlap]))
    readers[:] = kept
    writer[items] = index


def _check_order(rank: int, steps: Sequence[Step], earlier: int, later: int, before: int) -> None:
    if not (before >> earlier) & 1:
        raise PlanError(
            "simulate",
            f"rank {rank}: race: step {earlier} ({steps[earlier]}) and step {later}"
            f" ({steps[later]}) touch the same items in no order",
        )
