"""Which blocks are made of which: parity of data, lost blocks of the others.

Pure: a *task* names a lane, a row, the blocks that are read and those that are
written, and the matrix between them.  All ranks of a group make the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.checkpoint.placement.stripe_layout import (
    Share,
    StripeLayout,
    data_member,
    parity_member,
)

#: Blocks of a share that are of no use, as (start, stop) in bytes of the block.
Damage = Mapping[tuple[Share, int], Sequence[tuple[int, int]]]


@dataclass(frozen=True)
class Task:
    """Blocks to make.

    Attributes
    ----------
    worker : int
        The rank that makes them.
    lane, row : int
        Where.
    read, write : tuple of int
        Numbers of blocks in the row: data first, then parities.
    matrix : ndarray of uint8, shape (len(write), len(read))
        Gives ``write`` as sums of ``read``.
    start, stop : int
        Which bytes of the blocks.
    """

    worker: int
    lane: int
    row: int
    read: tuple[int, ...]
    write: tuple[int, ...]
    matrix: Bytes
    start: int
    stop: int


def holder(layout: StripeLayout, lane: int, row: int, block: int) -> tuple[Share, int]:
    """Give where a block of a row lies.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of the group.
    lane, row, block : int
        Which block.

    Returns
    -------
    share : Share
        That holds it.
    number : int
        Which of the share's blocks it is: its data first, then its parities.
    """
    data = layout.data
    if block < data:
        return Share(layout.group, lane, data_member(layout, row, block)), block
    return Share(layout.group, lane, parity_member(layout, row, block - data)), block


def encoding(layout: StripeLayout, code: Code, *, apart: bool) -> list[Task]:
    """List the tasks that make all parities of a group.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of the group.
    code : Code
        Its code.
    apart : bool
        Whether each parity is made where it lies, for members do not share memory;
        else the parities of a row are made in one go.

    Returns
    -------
    list of Task
        Equal work for all members.
    """
    data, parity = layout.data, layout.parity
    read = tuple(range(data))
    tasks = []
    for lane in range(layout.lanes):
        for row in range(layout.members):
            lots = [(number,) for number in range(parity)] if apart else [tuple(range(parity))]
            for lot in lots:
                share = Share(layout.group, lane, parity_member(layout, row, lot[0]))
                write = tuple(data + number for number in lot)
                worker = layout.keeper(share)
                task = Task(worker, lane, row, read, write, code.matrix[list(lot)], 0, layout.block)
                tasks.append(task)
    return tasks


def rebuilding(
    layout: StripeLayout, code: Code, damage: Damage, worker: Callable[[Share, int], int]
) -> list[Task]:
    """List the tasks that make blocks anew.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of the group.
    code : Code
        Its code.
    damage : mapping of (Share, int) to sequence of (int, int)
        Block of a share -> runs of bytes in it that are of no use.
    worker : callable
        Gives the rank that makes the block of a share in a row.

    Returns
    -------
    list of Task
        For each row and run of bytes with the same losses.

    Raises
    ------
    TooManyErasures
        If more blocks of a row are lost than the code can lose.
    """
    tasks = []
    for lane in range(layout.lanes):
        for row in range(layout.members):
            for start, stop, present in losses(layout, damage, lane, row):
                recipe = code.recipe(present)
                by_worker: dict[int, list[int]] = {}
                for at, block in enumerate(recipe.lost):
                    share, _ = holder(layout, lane, row, block)
                    by_worker.setdefault(worker(share, row), []).append(at)
                for rank, places in sorted(by_worker.items()):
                    write = tuple(recipe.lost[at] for at in places)
                    matrix = recipe.matrix[places]
                    tasks.append(Task(rank, lane, row, recipe.read, write, matrix, start, stop))
    return tasks


def losses(
    layout: StripeLayout, damage: Damage, lane: int, row: int
) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """Give the runs of bytes of a row in which blocks are lost.

    Local.

    Parameters
    ----------
    layout, damage
        As for `rebuilding`.
    lane, row : int
        Which row.

    Yields
    ------
    start, stop : int
        The run.
    present : ndarray of bool, shape (members,)
        Which blocks are not lost there.
    """
    runs = [damage.get(holder(layout, lane, row, block), ()) for block in range(layout.members)]
    edges = sorted({edge for own in runs for run in own for edge in run})
    for start, stop in pairwise(edges):
        gone = [any(first <= start and stop <= last for first, last in own) for own in runs]
        if any(gone):
            yield start, stop, np.logical_not(gone)


def damaged_blocks(
    layout: StripeLayout,
    share: Share,
    chunks: Sequence[int],
    parity_chunks: Sequence[tuple[int, int]],
) -> dict[tuple[Share, int], list[tuple[int, int]]]:
    """Give which blocks of a share suffer where chunks of it are damaged.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of its group.
    share : Share
        Whose.
    chunks : sequence of int
        Chunks of its data, ascending.
    parity_chunks : sequence of (int, int)
        Parity, and chunk of it, ascending.

    Returns
    -------
    dict of (Share, int) to list of (int, int)
        As `rebuilding` takes them; runs that touch are one.
    """
    chunk, block = layout.chunk, layout.block
    found: dict[tuple[Share, int], list[tuple[int, int]]] = {}

    def add(number: int, start: int, stop: int) -> None:
        runs = found.setdefault((share, number), [])
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        elif start < stop:
            runs.append((start, stop))

    for number in chunks:
        start, stop = number * chunk, min((number + 1) * chunk, layout.data_bytes)
        while start < stop:
            at, first = divmod(start, block)
            last = min(block, first + stop - start)
            add(at, first, last)
            start += last - first
    for parity, number in parity_chunks:
        add(layout.data + parity, number * chunk, min((number + 1) * chunk, block))
    return found


def all_lost(
    layout: StripeLayout, share: Share, *, data: bool = True
) -> dict[tuple[Share, int], list[tuple[int, int]]]:
    """Give the blocks of a share of which nothing is left, or nothing but its data.

    Local.

    Parameters
    ----------
    layout : StripeLayout
        Of its group.
    share : Share
        Which.
    data : bool
        Whether its data are gone too.

    Returns
    -------
    dict of (Share, int) to list of (int, int)
        As `rebuilding` takes them.
    """
    numbers = range(0 if data else layout.data, layout.members)
    return {(share, number): [(0, layout.block)] for number in numbers} if layout.block else {}
