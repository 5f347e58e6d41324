"""What the algorithm behind a row is, and what its plan sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from closeranks.jobs.bench.measuring.collective_facts import equal, whole

if TYPE_CHECKING:
    from closeranks.comms.topology.topology import Topology
    from closeranks.jobs.bench.measuring.collective_facts import Collective, Problem


def counts(collective: Collective, problem: Problem) -> dict[str, Any]:
    """Say the size of a problem as `closeranks.collectives.plans.plan_type` takes it.

    Parameters
    ----------
    collective : Collective
        The operation.
    problem : Problem
        Its size.

    Returns
    -------
    dict
        ``count`` or ``counts``, in elements.
    """
    if collective.split is whole:
        return {"count": problem.total}
    if collective.split is equal:
        return {"count": problem.mine}
    if collective.name != "alltoallv":
        return {"counts": problem.counts}
    ranks, row = problem.ranks, problem.counts
    turned = [[row[(to - source) % ranks] for to in range(ranks)] for source in range(ranks)]
    return {"counts": turned}


def call_bytes(collective: Collective, problem: Problem) -> int:
    """Say the size of a problem as ``comm.explain`` takes it.

    Parameters
    ----------
    collective : Collective
        The operation.
    problem : Problem
        Its size.

    Returns
    -------
    int
        Bytes of the vector, or of one rank's (mean) block.
    """
    elements = problem.total if collective.split is whole else problem.total // problem.ranks
    return elements * problem.pattern.dtype.itemsize


def planned_bytes(
    collective: Collective, problem: Problem, topology: Topology, algorithm: str
) -> int | None:
    """Count what leaves the busiest node in one call, by the plan; local.

    Parameters
    ----------
    collective : Collective
        The operation.
    problem : Problem
        Its size.
    topology : Topology
        Where the ranks sit.
    algorithm : str
        A planned algorithm, or "native".

    Returns
    -------
    int or None
        Payload bytes; None for "native", and where all ranks share a node.
    """
    if algorithm == "native" or "node" not in topology.levels:
        return None
    from closeranks.collectives.analysis.cost_model import cost
    from closeranks.collectives.selection.planner import plan

    described = plan(
        collective.name,
        topology,
        algorithm=algorithm,
        dtype=problem.pattern.dtype.name,
        op=problem.pattern.op if collective.reduces else "sum",
        **counts(collective, problem),
    )
    return cost(described).group_bytes_per_level["node"]
