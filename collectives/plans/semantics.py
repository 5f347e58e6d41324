"""What each collective means, by the standard, on arrays in one process.

The oracle of every test: outputs of all ranks from the inputs of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.collective import Problem

Array = NDArray[Any]
Reduction = Callable[[Array, Array], Array]


def meaning(
    problem: Problem, inputs: Sequence[Array], op: Reduction = np.add
) -> list[Array | None]:
    """Return what every rank's output must hold.

    Parameters
    ----------
    problem : Problem
        The collective, with all counts.
    inputs : sequence of ndarray
        One a rank, 1-D.
    op : callable
        ``op(left, right)``; folded in rank order.

    Returns
    -------
    list of ndarray or None
        None where MPI leaves the output undefined (exscan on rank 0).
    """
    empty = inputs[0][:0]
    size, root, operation = problem.size, problem.root, problem.operation
    ranks = range(size)

    def only_root(value: Array) -> list[Array | None]:
        return [value if rank == root else empty for rank in ranks]

    match operation:
        case "barrier":
            return [empty for _ in ranks]
        case "bcast":
            return [inputs[root] for _ in ranks]
        case "allreduce":
            return [reduce(op, inputs)] * size
        case "reduce":
            return only_root(reduce(op, inputs))
        case "reduce_scatter_block" | "reduce_scatter":
            return list(_cut(problem, reduce(op, inputs)))
        case "scan":
            return [reduce(op, inputs[: rank + 1]) for rank in ranks]
        case "exscan":
            return [reduce(op, inputs[:rank]) if rank else None for rank in ranks]
        case "allgather" | "allgatherv":
            return [np.concatenate(inputs)] * size
        case "gather" | "gatherv":
            return only_root(np.concatenate(inputs))
        case "scatter" | "scatterv":
            return list(_cut(problem, inputs[root]))
    return list(_transposed(problem, inputs))


def _ends(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _cut(problem: Problem, whole: Array) -> list[Array]:
    counts = problem.counts
    if counts is None:
        counts = np.full(problem.size, problem.count)
    ends = _ends(counts)
    return [whole[ends[rank] : ends[rank + 1]] for rank in range(problem.size)]


def _transposed(problem: Problem, inputs: Sequence[Array]) -> list[Array]:
    size = problem.size
    counts = problem.counts
    if counts is None:
        counts = np.full((size, size), problem.count)
    ends = [_ends(row) for row in counts]
    return [
        np.concatenate([inputs[s][ends[s][d] : ends[s][d + 1]] for s in range(size)])
        for d in range(size)
    ]
