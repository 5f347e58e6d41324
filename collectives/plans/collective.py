"""The collectives of MPI: a request for one, and its meaning on arrays.

A `Problem` is a request: an operation, its sizes, and the topology that it
runs on.  The rest of the file computes the outputs of all ranks from the
inputs of all ranks, by the standard, in one process.  All tests compare with
that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.topology.topology import Topology

#: Operations with one vector of counts, one count a rank.
VECTOR = frozenset({"allgatherv", "gatherv", "scatterv", "reduce_scatter"})
#: Operations that reduce.
REDUCING = frozenset(
    {"allreduce", "reduce", "reduce_scatter_block", "reduce_scatter", "scan", "exscan"}
)
#: Operations of one vector; all others have a block for each rank, and algorithms put many
#: into one message.
OF_ONE = frozenset({"allreduce", "bcast", "exscan", "reduce", "scan"})
#: Operations with a root.
ROOTED = frozenset({"bcast", "reduce", "gather", "gatherv", "scatter", "scatterv"})
#: Everything a plan can describe.
OPERATIONS = (
    "barrier", "bcast", "reduce", "allreduce", "reduce_scatter_block", "reduce_scatter",
    "allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv",
    "alltoall", "alltoallv", "scan", "exscan",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """One collective call, as far as all ranks agree on it.

    Attributes
    ----------
    operation : str
        One of `OPERATIONS`.
    topology : Topology
        Where the ranks sit.
    count : int
        Elements, as MPI counts them: of the vector (allreduce, reduce, bcast,
        scan), of one rank's block (gather, scatter, allgather, alltoall,
        reduce_scatter_block); 0 for v-operations and barrier.
    counts : ndarray of int64 or None
        v-operations: shape (size,), the block of each rank; alltoallv: shape
        (size, size), row = sender, or, where ``local``, shape (2, size): the
        items that this rank sends to each rank and receives from each.  -1 is
        "this rank cannot know".
    local : bool
        Whether ``counts`` are those that one rank knows, not those of all.
    root : int
        Root of rooted operations, else 0.
    itemsize : int
        Bytes of an element.
    commutative : bool
        Whether operands may change places; False asks for rank order.
    length : int
        Sparse operations: how many indices there may be.  ``count`` is the
        most that a rank has, and an element is the values of an index.
    """

    operation: str
    topology: Topology
    count: int = 0
    counts: NDArray[np.int64] | None = None
    root: int = 0
    itemsize: int = 4
    commutative: bool = True
    local: bool = False
    length: int = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.topology.size

    def seen_by(self, rank: int) -> Problem:
        """Return the problem with only the counts that MPI lets ``rank`` know.

        Allgatherv and reduce_scatter are given everywhere; gatherv and
        scatterv only to the root; of alltoallv a rank knows its row and its
        column.
        """
        counts = self.counts
        if counts is None or self.operation in ("allgatherv", "reduce_scatter"):
            return self
        if self.operation == "alltoallv":
            known = counts if self.local else np.stack([counts[rank], counts[:, rank]])
        elif rank == self.root or self.local:
            known = counts
        else:
            known = np.full_like(counts, -1)
            known[rank] = counts[rank]
        return replace(self, counts=known, local=True)

    def sent_by(self, rank: int) -> NDArray[np.int64]:
        """Alltoallv: how many elements ``rank`` sends to each rank, shape (size,)."""
        assert self.counts is not None
        found: NDArray[np.int64] = self.counts[0 if self.local else rank]
        return found

    def received_by(self, rank: int) -> NDArray[np.int64]:
        """Alltoallv: how many elements ``rank`` receives from each rank, shape (size,)."""
        assert self.counts is not None
        found: NDArray[np.int64] = self.counts[1] if self.local else self.counts[:, rank]
        return found

    def input_items(self, rank: int) -> int:
        """Elements of the caller's input on ``rank``."""
        return self._items(rank, into=False)

    def output_items(self, rank: int) -> int:
        """Elements of the caller's output on ``rank``."""
        return self._items(rank, into=True)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Ranks sorted so that each group of each level is one run.

        Flat algorithms follow it where operands commute, since a neighbour in
        the same node costs the network nothing.
        """
        order: NDArray[np.int64] = np.lexsort(self.topology.groups[::-1]).astype(np.int64)
        return order

    @cached_property
    def members(self) -> list[int]:
        """The ranks in this order, one list for all ranks' plans; not to be changed."""
        ranks: list[int] = self.order.tolist()
        return ranks

    def _items(self, rank: int, *, into: bool) -> int:
        size, count = self.size, self.count
        at_root = rank == self.root
        wide, narrow = size * count, count
        match self.operation:
            case "barrier" | "allreduce_sparse" | "reduce_scatter_sparse":
                return 0
            case "allgather":
                return wide if into else narrow
            case "alltoall":
                return wide
            case "reduce_scatter_block":
                return narrow if into else wide
            case "gather":
                return (wide if at_root else 0) if into else narrow
            case "scatter":
                return narrow if into else (wide if at_root else 0)
            case "bcast":
                return narrow if into or at_root else 0
            case "reduce":
                return narrow if at_root or not into else 0
            case "allreduce" | "scan" | "exscan":
                return narrow
        return self._v_items(rank, into=into)

    def _v_items(self, rank: int, *, into: bool) -> int:
        counts = self.counts
        assert counts is not None
        if self.operation == "alltoallv":
            return int((self.received_by(rank) if into else self.sent_by(rank)).sum())
        mine, at_root = int(counts[rank]), rank == self.root
        match self.operation:
            case "allgatherv":
                return int(counts.sum()) if into else mine
            case "reduce_scatter":
                return mine if into else int(counts.sum())
            case "gatherv":
                return (int(counts.sum()) if at_root else 0) if into else mine
            case _:  # scatterv
                return mine if into else (int(counts.sum()) if at_root else 0)


Array = NDArray[Any]
Reduction = Callable[[Array, Array], Array]


def meaning(
    problem: Problem, inputs: Sequence[Array], op: Reduction = np.add
) -> list[Array | None]:
    """Return the right output of every rank.

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
