"""All algorithms, listed once: for tests, prices, explanations and benchmarks."""

from __future__ import annotations

from closeranks.collectives.builders import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    gather,
    reduce,
    reduce_scatter,
    row_exchange,
    scan,
    scatter,
    shared_memory,
    sparse_allreduce,
)
from closeranks.collectives.builders.patterns import leader_tree
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.comms import argument
from closeranks.errors import UsageError

HIERARCHICAL: dict[str, tuple[Algorithm, ...]] = {
    "barrier": barrier.HIERARCHICAL,
    "bcast": bcast.HIERARCHICAL,
    "reduce": reduce.HIERARCHICAL,
    "allreduce": (*allreduce.HIERARCHICAL, *leader_tree.ALGORITHMS),
    "reduce_scatter_block": reduce_scatter.HIERARCHICAL,
    "reduce_scatter": reduce_scatter.HIERARCHICAL,
    "allgather": allgather.HIERARCHICAL,
    "allgatherv": allgather.HIERARCHICAL,
    "gather": gather.HIERARCHICAL,
    "gatherv": gather.HIERARCHICAL_V,
    "scatter": scatter.HIERARCHICAL,
    "scatterv": scatter.HIERARCHICAL_V,
    "alltoall": alltoall.HIERARCHICAL,
    "alltoallv": alltoall.HIERARCHICAL_V,
}


_FLAT: dict[str, tuple[Algorithm, ...]] = {
    "barrier": barrier.ALGORITHMS,
    "bcast": bcast.ALGORITHMS,
    "reduce": reduce.ALGORITHMS,
    "allreduce": allreduce.ALGORITHMS,
    "reduce_scatter_block": reduce_scatter.ALGORITHMS,
    "reduce_scatter": reduce_scatter.ALGORITHMS,
    "allgather": allgather.ALGORITHMS,
    "allgatherv": allgather.ALGORITHMS_V,
    "gather": gather.ALGORITHMS,
    "gatherv": gather.ALGORITHMS_V,
    "scatter": scatter.ALGORITHMS,
    "scatterv": scatter.ALGORITHMS_V,
    "alltoall": alltoall.ALGORITHMS,
    "alltoallv": alltoall.ALGORITHMS_V,
    "scan": scan.ALGORITHMS,
    "exscan": scan.ALGORITHMS_EXCLUSIVE,
}
ALGORITHMS: dict[str, tuple[Algorithm, ...]] = {
    operation: (
        *flat,
        *HIERARCHICAL.get(operation, ()),
        *([shared_memory.shared(operation)] if operation in shared_memory.MEANINGS else ()),
    )
    for operation, flat in _FLAT.items()
}
#: Operations beside MPI's: index-value pairs, and rows that some ranks want.
SPARSE: dict[str, tuple[Algorithm, ...]] = {
    "allreduce_sparse": sparse_allreduce.ALGORITHMS,
    "reduce_scatter_sparse": (sparse_allreduce.REDUCE_SCATTER,),
    "route_dispatch": row_exchange.DISPATCH,
    "route_combine": row_exchange.COMBINE,
    "allgather_chunks": row_exchange.DISPATCH,
    "reduce_scatter_chunks": row_exchange.COMBINE,
}
_BY_NAME: dict[str, dict[str, Algorithm]] = {
    operation: {algorithm.name: algorithm for algorithm in known}
    for operation, known in (ALGORITHMS | SPARSE).items()
}


def algorithms(operation: str) -> tuple[str, ...]:
    """Names that ``algorithm=`` takes for an operation, besides "auto" and "native".

    Parameters
    ----------
    operation : str
        For instance ``"allreduce"``.

    Returns
    -------
    tuple of str
        Names, in the order of the catalogue.

    Raises
    ------
    UsageError
        If there is no such operation.
    """
    if not isinstance(operation, str) or operation not in ALGORITHMS:
        problem = f"no operation {argument.shown(operation)}"
        raise UsageError("algorithms", problem, f"one of {', '.join(ALGORITHMS)}")
    return tuple(_BY_NAME[operation])


def find(operation: str, name: str) -> Algorithm:
    """Return the algorithm ``name`` of an operation; UsageError names the choices."""
    is_text = isinstance(operation, str) and isinstance(name, str)
    found = _BY_NAME.get(operation, {}).get(name) if is_text else None
    if found is None:
        names = algorithms(operation)
        raise UsageError(
            operation,
            f"no algorithm {argument.shown(name)}",
            f"one of auto, native, {', '.join(names)}",
        )
    return found
