"""Pure kernels that APPLY steps name: arrays in, arrays and integers out.

A kernel is called as ``kernel(*reads, *writes)`` with one 1-D array a block,
of the plan's dtype where the buffer's unit is 0, of int64, int32 or uint8
where it is 8, 4 or 1.  It fills ``writes`` and returns nothing, an integer, or
a tuple of integers for the registers that the step sets.  With early stop
(``need`` below the number of steps waited for) a bool array ``arrived`` comes
first: it says which of them are done.  Kernels keep no state and touch no
other memory.

The second part of the file serves the hierarchical v-operations, whose sizes
are known only while the plan runs.  They exchange counts first.  From the
counts, these kernels work out where every message starts, and bring runs of
items from one order to another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
#: An entry of `KERNELS`.
Kernel: TypeAlias = Callable[..., "int | tuple[int, ...] | None"]
_K = TypeVar("_K", bound=Kernel)

KERNELS: dict[str, Kernel] = {}


def kernel(name: str) -> Callable[[_K], _K]:
    """Register the decorated function as the kernel ``name``.

    Parameters
    ----------
    name : str
        The name in `Apply.kernel`; may be taken once.
    """

    def register(function: _K) -> _K:
        assert name not in KERNELS, f"two kernels are called {name}"
        KERNELS[name] = function
        return function

    return register


@kernel("sum_arrived")
def sum_arrived(arrived: NDArray[np.bool_], *blocks: Array) -> None:
    """Add the blocks that have arrived, in order, into the last array.

    Parameters
    ----------
    arrived : ndarray, shape (n,), dtype bool
        Which of the ``n`` blocks may be read.
    *blocks : ndarray
        ``n`` blocks of equal length, then the array that takes their sum.
    """
    *parts, total = blocks
    total[:] = 0
    for is_there, part in zip(arrived, parts, strict=True):
        if is_there:
            total += part


@kernel("offsets")
def offsets(counts: NDArray[np.int64], starts: NDArray[np.int64]) -> int:
    """Write the start of each of ``n`` packed runs; return their total.

    Parameters
    ----------
    counts : ndarray, shape (n,), dtype int64
        Items of each run.
    starts : ndarray, shape (n,), dtype int64
        Filled with the exclusive prefix sum of ``counts``.

    Returns
    -------
    int
        Items of all runs.
    """
    ends = np.cumsum(counts)
    starts[:] = ends - counts
    return int(ends[-1]) if len(ends) else 0


@kernel("numbers")
def numbers(values: NDArray[np.int64]) -> tuple[int, ...]:
    """Give every value of an array to a register.

    Parameters
    ----------
    values : ndarray, shape (n,), dtype int64
        One for each of the ``n`` registers that the step sets.
    """
    return tuple(values.tolist())


Ints = NDArray[np.int64]

#: From so many items a run on, runs are copied one by one.
_LONG_RUN = 64


def move_runs(data: Array, starts: Ints, counts: Ints, out: Array) -> None:
    """Fill ``out`` with runs of ``data``, one after the other.

    Parameters
    ----------
    data : ndarray, 1-D
        Where the runs are.
    starts, counts : ndarray, shape (n,), dtype int64
        First item and length of each run.
    out : ndarray, 1-D
        Of ``counts.sum()`` items.
    """
    ends = np.cumsum(counts)
    if len(out) >= _LONG_RUN * np.count_nonzero(counts):
        for start, count, end in zip(starts.tolist(), counts.tolist(), ends.tolist(), strict=True):
            out[end - count : end] = data[start : start + count]
        return
    np.take(data, np.repeat(starts - ends + counts, counts) + np.arange(len(out)), out=out)


@kernel("layout")
def layout(counts: Ints) -> tuple[int, ...]:
    """Return the total of ``n`` packed runs, then each run's count, then its start.

    Parameters
    ----------
    counts : ndarray, shape (n,), dtype int64
        Items of each run.

    Returns
    -------
    tuple of int
        ``1 + 2 n`` numbers.
    """
    ends = np.cumsum(counts)
    return int(ends[-1]), *counts.tolist(), *(ends - counts).tolist()


@kernel("pick")
def pick(order: Ints, counts: Ints, data: Array, out: Array) -> None:
    """Pack the blocks of ranks in another order than theirs.

    Parameters
    ----------
    order : ndarray, shape (n,), dtype int64
        Numbers of the blocks, as they shall lie.
    counts : ndarray, shape (n,), dtype int64
        Items of each block, by number.
    data, out : ndarray, 1-D
        All blocks: by number, and in the order asked for.
    """
    starts = np.cumsum(counts) - counts
    move_runs(data, starts[order], counts[order], out)


@kernel("turn_layout")
def turn_layout(shape: Ints, counts: Ints, turned: Ints) -> tuple[int, ...]:
    """Turn a table of counts from [peer][node][rank] to [node][peer][rank].

    Parameters
    ----------
    shape : ndarray, shape (1 + nodes,), dtype int64
        Number of peers, then the number of ranks behind the rail in each node.
    counts, turned : ndarray, 1-D, dtype int64
        The table, before and after.

    Returns
    -------
    tuple of int
        As `layout` of the messages to each node.
    """
    turned[:] = counts[_turn(shape)]
    edges = np.concatenate([[0], np.cumsum(shape[0] * shape[1:])])
    sums = np.concatenate([[0], np.cumsum(turned)])[edges]
    return layout(np.diff(sums))


@kernel("turn")
def turn(shape: Ints, counts: Ints, *arrays: Array) -> None:
    """Turn runs of items as `turn_layout` turns their counts.

    Parameters
    ----------
    shape, counts : ndarray, 1-D, dtype int64
        As for `turn_layout`, before.
    *arrays : ndarray
        The data of each peer, then the array to fill.
    """
    *given, out = arrays
    data = np.concatenate(given)
    starts = np.cumsum(counts) - counts
    order = _turn(shape)
    move_runs(data, starts[order], counts[order], out)


@kernel("arrival_layout")
def arrival_layout(shape: Ints, counts: Ints) -> tuple[int, ...]:
    """Lay out the data of each node, and count the items for each rank.

    Parameters
    ----------
    shape : ndarray, shape (1 + nodes,), dtype int64
        Number of ranks behind the rail here, then the ranks of each node.
    counts : ndarray, 1-D, dtype int64
        Table [node][its rank][rank behind the rail here].

    Returns
    -------
    tuple of int
        `layout` of the messages from each node, then the total of each rank
        behind the rail but the first.
    """
    behind = int(shape[0])
    edges = np.concatenate([[0], np.cumsum(behind * shape[1:])])
    sums = np.concatenate([[0], np.cumsum(counts)])[edges]
    totals = counts.reshape(-1, behind).sum(axis=0)[1:]
    return *layout(np.diff(sums)), *totals.tolist()


@kernel("deal")
def deal(order: Ints, counts: Ints, data: Array, *outs: Array) -> None:
    """Give each rank behind a rail its items, in order of the senders.

    Parameters
    ----------
    order : ndarray, shape (senders,), dtype int64
        Rank of each sender, as their runs lie.
    counts : ndarray, shape (senders * k,), dtype int64
        Items of each run, for the ``k`` ranks one after the other.
    data : ndarray, 1-D
        All runs.
    *outs : ndarray
        ``k`` arrays to fill.
    """
    starts = (np.cumsum(counts) - counts).reshape(len(order), -1)
    table = counts.reshape(len(order), -1)
    by_rank = np.argsort(order)
    for place, out in enumerate(outs):
        move_runs(data, starts[by_rank, place], table[by_rank, place], out)


def _turn(shape: Ints) -> Ints:
    """Index of each entry of [node][peer][rank] in [peer][node][rank]."""
    peers, widths = int(shape[0]), shape[1:]
    firsts = np.cumsum(widths) - widths
    width = int(widths.sum())
    lengths = np.repeat(widths, peers)
    starts = np.repeat(firsts, peers) + np.tile(np.arange(peers) * width, len(widths))
    ends = np.cumsum(lengths)
    index: Ints = np.repeat(starts - ends + lengths, lengths) + np.arange(peers * width)
    return index
