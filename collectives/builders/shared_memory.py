"""Collectives of ranks that share a node: one kernel in its memory.

To simulate and to price such a plan, the stage that its leaf names is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.schedule import Leaf, Schedule

#: Operation -> the stage that says what its kernel does.
MEANINGS = {
    "allreduce": "two_shot_allreduce",
    "allgather": "direct_allgather",
    "alltoall": "pairwise_alltoall",
    "barrier": "dissemination_barrier",
    "bcast": "binomial_bcast",
    "reduce": "binomial_reduce",
    "reduce_scatter_block": "direct_reduce_scatter_block",
}


def _refuses(problem: Problem) -> str | None:
    """Say why the ranks cannot work in one memory."""
    topology = problem.topology
    if problem.size < 2:
        return "one rank has nobody to share with"
    if "node" not in topology.levels or len(topology.sizes("node")) > 1:
        return "the ranks are not all on one node"
    return None


def _builder(operation: str) -> Callable[[Schedule, Problem], Generator[None, None, None]]:
    def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
        members = tuple(range(problem.size))
        leaf = Leaf(operation, "node", members, MEANINGS[operation], problem.root)
        given = Block(INPUT, 0, problem.input_items(out.rank))
        taken = Block(OUTPUT, 0, problem.output_items(out.rank))
        out.shared(leaf, given, taken)
        yield

    return build


def shared(operation: str) -> Algorithm:
    """Make the algorithm ``shared`` of an operation.

    Parameters
    ----------
    operation : str
        In `MEANINGS`.

    Returns
    -------
    Algorithm
        For ranks of one node.
    """
    return Algorithm(
        "shared",
        _builder(operation),
        commutative=True,
        refuses=_refuses,
        kernels=True,
        follows=False,
    )
