"""What each collective gives, worked out on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
COUNT = 5


def given(rank: int, count: int, dtype: Any = np.int64) -> Array:
    """A vector that tells ranks and places apart; exact in every type and order."""
    return ((np.arange(count) * 3 + rank * 7) % 11).astype(dtype)


def summed(size: int, count: int, dtype: Any = np.int64) -> Array:
    """The sum of all vectors."""
    total: Array = np.sum([given(rank, count, np.int64) for rank in range(size)], axis=0)
    return total.astype(dtype)


class Case:
    """One call: its arguments on a rank, and what must stand in a buffer after it."""

    def __init__(self, method: str, arguments: list[Any], result: Array | None, out: Any) -> None:
        self.method, self.arguments, self.result, self.out = method, arguments, result, out


def cases(rank: int, size: int, root: int, scale: int = 1) -> list[Case]:
    """One case of every operation, on buffers of their own, so many times as long."""
    counts, count = [(r * 2) % 5 * scale for r in range(size)], COUNT * scale
    mine = given(rank, count)
    all_blocks = np.concatenate([given(r, count) for r in range(size)])
    v_blocks = np.concatenate([given(r, counts[r]) for r in range(size)])
    wide = given(rank, count * size)
    total = summed(size, count * size)
    at_root = rank == root
    made: list[Case] = []

    def add(method: str, make: Callable[[], tuple[list[Any], Array | None, Any]]) -> None:
        made.append(Case(method, *make()))

    out = np.full(count, -1)
    add("Allreduce", lambda: ([mine, out], summed(size, count), out))
    out2 = np.full(count, -1)
    add("Reduce", lambda: ([mine, out2], summed(size, count) if at_root else None, out2))
    made[-1].arguments += [_SUM(), root]
    out3 = np.full(count, -1)
    add("Reduce_scatter_block", lambda: ([wide, out3], total[rank * count :][:count], out3))
    first = sum(counts[:rank])
    v_total = summed(size, sum(counts))
    out4 = np.full(counts[rank], -1)
    v_wide = given(rank, sum(counts))
    add(
        "Reduce_scatter",
        lambda: ([v_wide, out4, counts], v_total[first : first + counts[rank]], out4),
    )
    out5 = np.full(count * size, -1)
    add("Allgather", lambda: ([mine, out5], all_blocks, out5))
    out6 = np.full(sum(counts), -1)
    add("Allgatherv", lambda: ([given(rank, counts[rank]), [out6, counts]], v_blocks, out6))
    out7 = np.full(count * size, -1)
    add("Gather", lambda: ([mine, out7, root], all_blocks if at_root else None, out7))
    out8 = np.full(sum(counts), -1)
    block = given(rank, counts[rank])
    add("Gatherv", lambda: ([block, [out8, counts], root], v_blocks if at_root else None, out8))
    out9 = np.full(count, -1)
    add("Scatter", lambda: ([all_blocks if at_root else None, out9, root], mine, out9))
    out10 = np.full(counts[rank], -1)
    v_source = [v_blocks, counts] if at_root else None
    add("Scatterv", lambda: ([v_source, out10, root], block, out10))
    _add_exchanges(add, rank, size, scale)
    buf = given(root, count) if at_root else np.full(count, -1)
    add("Bcast", lambda: ([buf, root], given(root, count), buf))
    out11, out12 = np.full(count, -1), np.full(count, -1)
    add("Scan", lambda: ([mine, out11], summed(rank + 1, count), out11))
    add("Exscan", lambda: ([mine, out12], summed(rank, count) if rank else None, out12))
    return made


def _add_exchanges(add: Callable[..., None], rank: int, size: int, scale: int) -> None:
    count = COUNT * scale
    out = np.full(count * size, -1)
    wide = given(rank, count * size)
    came = np.concatenate([given(r, count * size)[rank * count :][:count] for r in range(size)])
    add("Alltoall", lambda: ([wide, out], came, out))
    sends = [[(s + 2 * r) % 4 * scale for r in range(size)] for s in range(size)]
    receives = [sends[s][rank] for s in range(size)]
    out2 = np.full(sum(receives), -1)
    source = given(rank, sum(sends[rank]))
    came2 = [given(s, sum(sends[s]))[sum(sends[s][:rank]) :][: sends[s][rank]] for s in range(size)]
    add(
        "Alltoallv",
        lambda: ([[source, sends[rank]], [out2, receives]], np.concatenate(came2), out2),
    )


def _SUM() -> Any:
    from mpi4py import MPI

    return MPI.SUM
