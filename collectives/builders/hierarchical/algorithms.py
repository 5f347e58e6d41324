"""The hierarchical algorithms of every operation, for the catalogue."""

from __future__ import annotations

from closeranks.collectives.builders.hierarchical import (
    allgather,
    allreduce,
    alltoall,
    alltoallv,
    barrier,
    bcast,
    gather,
    gatherv,
    reduce,
    reduce_scatter,
    scatter,
    scatterv,
)
from closeranks.collectives.builders.patterns import leader_tree
from closeranks.collectives.plans.plan_type import Algorithm

HIERARCHICAL: dict[str, tuple[Algorithm, ...]] = {
    "barrier": barrier.ALGORITHMS,
    "bcast": bcast.ALGORITHMS,
    "reduce": reduce.ALGORITHMS,
    "allreduce": (*allreduce.ALGORITHMS, *leader_tree.ALGORITHMS),
    "reduce_scatter_block": reduce_scatter.ALGORITHMS,
    "reduce_scatter": reduce_scatter.ALGORITHMS,
    "allgather": allgather.ALGORITHMS,
    "allgatherv": allgather.ALGORITHMS,
    "gather": gather.ALGORITHMS,
    "gatherv": gatherv.ALGORITHMS,
    "scatter": scatter.ALGORITHMS,
    "scatterv": scatterv.ALGORITHMS,
    "alltoall": alltoall.ALGORITHMS,
    "alltoallv": alltoallv.ALGORITHMS,
}
