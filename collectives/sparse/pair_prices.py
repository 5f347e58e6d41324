"""What the algorithms of `Communicator.Allreduce_sparse` would cost, in seconds.

The constants are those of ranks that have a core each.  Where ranks share
cores, steps wait for each other's turn, and kernels for memory.
"""

from __future__ import annotations

from math import ceil, inf, log, log2
from typing import Final

from closeranks.collectives.analysis.cost_model import Speed, cost
from closeranks.collectives.builders.catalogue import SPARSE
from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Plan
from closeranks.comms.wait import crowding

#: Name of the algorithm that combines whole vectors.
DENSE: Final = "dense"
#: Longest vector that "auto" combines whole, in bytes.
DENSEST: Final = 1 << 32
#: Seconds that a step of a plan of pairs takes, and its kernel for a byte of coded pairs.
_STEP_S: Final = 45e-6
_KERNEL_S_PER_BYTE: Final = 2e-9
#: With ranks that share a core a step takes longer by this power of their number.
_STEP_POWER: Final = 1.5
#: Seconds that whole vectors take for a byte of them beside the wire, and for an index of the
#: result.
_DENSE_S_PER_BYTE: Final = 0.5e-9
_DENSE_S_PER_INDEX: Final = 4e-9
#: Seconds that kernels alone on a core take for a byte that they write.
_PACE_S: Final = 0.7e-9
#: At most so many times slower.
_SLOWEST: Final = 4.0


def slowness(kernel_s_per_byte: float) -> float:
    """Return how much slower kernels are than alone on a core.  Local.

    Parameters
    ----------
    kernel_s_per_byte : float
        Measured, see `OpenPlans`; 0 if it is not known yet.
    """
    return max(kernel_s_per_byte / _PACE_S, crowding())


def rounded(slower: float) -> float:
    """Round a slowness: close ones share a choice."""
    return float(min(1.5 ** round(log(slower, 1.5)), _SLOWEST))


def pair_prices(problem: Problem, slower: float = 1.0) -> dict[str, float]:
    """Return the seconds that each algorithm would take.

    Parameters
    ----------
    problem : Problem
        The call.
    slower : float
        See `slowness`; equal on all ranks.
    """
    speed = Speed(
        step_s=_STEP_S * slower**_STEP_POWER, kernel_s_per_byte=_KERNEL_S_PER_BYTE * slower
    )
    listed = SPARSE["allreduce_sparse"]
    prices = {one.name: cost(Plan(problem, one), speed=speed).seconds for one in listed}
    if problem.length * problem.itemsize <= DENSEST:
        prices[DENSE] = _dense_seconds(problem, slower)
    return prices


def _dense_seconds(problem: Problem, slower: float) -> float:
    """Return the least time of whole vectors: their bytes, over what links carry.

    The price of each all-reduce would take seconds to work out.
    """
    topology, tiers = problem.topology, nodes_of(problem.topology)
    whole = problem.length * problem.itemsize
    sent = whole + problem.length / 8
    density = problem.count / max(problem.length, 1)
    indices = problem.length * (1 - (1 - density) ** problem.size)  # if ranks draw at random
    total = (whole * _DENSE_S_PER_BYTE + indices * _DENSE_S_PER_INDEX) * slower
    for ranks in (tiers.rail(0), tiers.members[0]):  # one of each node, and one node
        if len(ranks) > 1:
            link = topology.link(ranks[0], ranks[1])
            rate = (link.bytes_per_s or inf) * (link.rails or 1)
            total += 2 * (1 - 1 / len(ranks)) * sent / rate
            total += 4 * ceil(log2(len(ranks))) * (link.latency_s or 0.0)
    return total
