"""The number of segments of a vector with which all tiers work at once.

Segments are chains of steps that share nothing: while one crosses the nodes,
the next is summed inside them.  With ``m`` segments the busiest tier works all
the time, every other tier adds the time of one segment, and every segment pays
the busiest tier's latency again::

    T(m) = max(b) + m a + sum of the other b / m
    m* = sqrt(sum of the other b / a)

Here ``b`` is the time of a tier's transfer and ``a`` the latency of the
busiest.  ``m`` is the nearest power of two, so that sizes which divide go on
dividing.  Where `closeranks tune` has measured the tiers' stages, both are its
values at the size of segments, and nothing else bounds how small these become.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.comms.topology.link import SEGMENT_BYTES, Link

#: No segment is smaller: below, a step costs more than its transfer, we guess.
LEAST_BYTES = 64 << 10
#: More segments than that gain nothing and cost memory.
MOST = 16
#: Messages of a pair that one tier may tell apart, see `stage`.
SPARE_SLOTS = 1 << 20


class Layer(NamedTuple):
    """The cost of one tier for the whole vector.

    Attributes
    ----------
    latency_s, transfer_s : float
        Seconds of all its messages, without and for their bytes.
    """

    latency_s: float
    transfer_s: float


#: Rounds of a stage of so many members.
Rounds = Callable[[int], int]


def in_tree(members: int) -> int:
    """Count the rounds of halving, doubling and trees."""
    return max(1, (members - 1).bit_length())


def in_ring(members: int) -> int:
    """Count the rounds of a ring."""
    return members - 1


def in_either(members: int) -> int:
    """Count the rounds of what is a ring unless the members are a power of two."""
    return in_ring(members) if members & (members - 1) else in_tree(members)


def segments(problem: Problem, slots: int, rounds: Rounds = in_tree) -> int:
    """Return the number of segments; the same on every rank.

    Parameters
    ----------
    problem : Problem
        Operation on a vector of ``count`` elements.
    slots : int
        Message slots that a segment uses, on the way up and down together.
    rounds : callable
        Rounds of the last tier.
    """
    nbytes = problem.count * problem.itemsize
    most = min(MOST, nbytes // _least_bytes(problem), SPARE_SLOTS // slots)
    if most < 2:
        return 1
    layers = _layers(problem, nbytes, rounds)
    if layers is None:
        return 1
    busiest = max(layers, key=lambda layer: layer.transfer_s)
    others = sum(layer.transfer_s for layer in layers) - busiest.transfer_s
    wanted = round(math.log2(max(1.0, math.sqrt(others / busiest.latency_s))))
    return 1 << min(wanted, most.bit_length() - 1)


def slots_of(tree: Hierarchy) -> int:
    """Message slots of a stage: two ranks meet at one tier, so the longest's."""
    return 2 * tree.widest + 2


def _least_bytes(problem: Problem) -> int:
    """Bytes that a segment has at least: of measured tiers, such as were measured."""
    tree, links = hierarchy(problem.topology), problem.topology.links
    if any(links[tier.level].segment_s is None for tier in tree.tiers):
        return LEAST_BYTES
    return SEGMENT_BYTES * math.prod(tier.owners for tier in tree.tiers)


def _layers(problem: Problem, nbytes: int, rounds: Rounds) -> list[Layer] | None:
    """Cost of each tier, or None where a latency or a bandwidth is unknown."""
    tree, links = hierarchy(problem.topology), problem.topology.links
    layers, share = [], float(nbytes)
    for number, tier in enumerate(tree.tiers, 1):
        link = links[tier.level]
        latency_s = link.start_s(SEGMENT_BYTES)
        if not latency_s or not link.bytes_per_s:
            return None
        ports = ports_of(tree, number)
        rate = link.bytes_per_s * min(1.0, (link.rails or ports) / ports)
        turns = _turns(number == tree.depth, link, rounds, tier.owners)
        moved = share * (tier.owners - 1) / tier.owners
        layers.append(Layer(2 * turns * latency_s, 2 * moved / rate))
        share /= tier.owners
    return layers


def ports_of(tree: Hierarchy, tier: int) -> int:
    """Count the ranks of one child group that send at a tier at the same time."""
    return int(tree.ports[tier - 1].shape[1])


def _turns(is_last: bool, link: Link, rounds: Rounds, members: int) -> int:
    """Latencies of a stage: one where all talk to all and that was measured."""
    if is_last:
        return rounds(members)
    return in_tree(members) if link.segment_s is None else 1
