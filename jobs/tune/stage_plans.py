"""The stages of hierarchical collectives, each as a plan of its own; pure.

What a tier does with a segment on its way up (``sum``: ranks of a group
reduce-scatter) and down (``gather``: they all-gather), and what the rails of
the last tier do (``allreduce``).  All groups of a tier work at the same time,
as they do in the whole collective.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import Cost, Speed, cost
from closeranks.collectives.builders.patterns.direct_exchange import (
    direct_allgather,
    direct_reduce_scatter,
)
from closeranks.collectives.builders.patterns.recursive_halving import rabenseifner_allreduce
from closeranks.collectives.builders.patterns.segments import ports_of
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import cut
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.port_tree import Rail, hierarchy
from closeranks.collectives.plans.rank_classes import classify
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Writing
from closeranks.comms.topology.link import SEGMENT_BYTES, Link
from closeranks.comms.topology.topology import Topology

#: Bytes of an element, float32.
ITEM: Final = 4
#: Sizes go from small messages to segments of so many bytes, by this factor.
_LARGEST, _FACTOR = 4 << 20, 4
_SMALL = 64


class Stage(NamedTuple):
    """One stage of one tier.

    Attributes
    ----------
    tier : int
        1 is the innermost.
    level : str
        What all its messages cross.
    kind : str
        "sum", "gather" or "allreduce".
    owners : int
        Into how many chunks a segment is cut.
    """

    tier: int
    level: str
    kind: str
    owners: int

    def message_bytes(self, nbytes: int) -> int:
        """Count the bytes of a message when a segment has ``nbytes``."""
        return nbytes // self.owners


class Weight(NamedTuple):
    """What a stage takes on links that are not known yet.

    Attributes
    ----------
    starts : float
        Messages that wait for each other.
    nbytes : float
        Bytes that go one after the other over one rail.
    fixed_s : float
        Seconds beside the wire: adding and copying.
    """

    starts: float
    nbytes: float
    fixed_s: float


def stages(topology: Topology) -> list[Stage]:
    """List the stages of a machine, innermost first.

    Parameters
    ----------
    topology : Topology
        Where the ranks sit.

    Returns
    -------
    list of Stage
        None on a single rank.
    """
    tree = hierarchy(topology)
    return [
        Stage(number, tier.level, kind, tier.owners)
        for number, tier in enumerate(tree.tiers, 1)
        for kind in (("allreduce",) if number == tree.depth else ("sum", "gather"))
    ]


def sizes(stage: Stage) -> list[int]:
    """List the segments to measure a stage with, in bytes, ascending.

    Parameters
    ----------
    stage : Stage
        The stage.

    Returns
    -------
    list of int
        One of small messages, then from `SEGMENT_BYTES` a message to 4 MiB a
        segment, three at least; all divide evenly.
    """
    found = [SEGMENT_BYTES * stage.owners * _FACTOR**step for step in range(3)]
    while found[-1] * _FACTOR <= _LARGEST:
        found.append(found[-1] * _FACTOR)
    return [_SMALL * stage.owners, *found]


def plan(stage: Stage, topology: Topology, nbytes: int) -> Plan:
    """Write a stage down for all rails of its tier.

    Parameters
    ----------
    stage : Stage
        The stage.
    topology : Topology
        Where the ranks sit.
    nbytes : int
        Of a segment.

    Returns
    -------
    Plan
        Ranks that take no part have no steps.
    """
    problem = Problem("allreduce", topology, count=nbytes // ITEM, itemsize=ITEM)
    return Plan(problem, Algorithm(stage.kind, _builder(stage), classes=_classes(stage)))


def weigh(stage: Stage, topology: Topology, nbytes: int, speed: Speed) -> Weight:
    """Take the price of a stage apart: it is linear in what its level costs.

    Parameters
    ----------
    stage : Stage
        The stage.
    topology : Topology
        Where the ranks sit.
    nbytes : int
        Of a segment.
    speed : Speed
        Costs beside the wire.

    Returns
    -------
    Weight
        ``starts * start_s + nbytes / bytes_per_s + fixed_s`` is its price, if all
        ports are busy all the time.
    """
    ports = ports_of(hierarchy(topology), stage.tier)
    rails = topology.links[stage.level].rails or ports

    def price(start_s: float, beside: Speed) -> Cost:
        known = {stage.level: Link(start_s, None, rails)}
        alone = replace(topology, links=known, exceptions={})
        return cost(plan(stage, alone, nbytes), speed=beside)

    bare, beside = price(1.0, Speed()), price(0.0, speed)
    shared = max(1.0, ports / rails)  # as segments() has it
    sent = bare.bytes_per_level[stage.level] * shared
    return Weight(bare.seconds, sent, beside.seconds)


def _builder(stage: Stage) -> Callable[[Script, Problem], Generator[None, None, object]]:
    write = _WRITERS[stage.kind]

    def build(out: Script, problem: Problem) -> Generator[None, None, None]:
        rails = hierarchy(problem.topology).rails(out.rank)
        for rail in rails[stage.tier - 1 : stage.tier]:
            yield from write(out, rail, problem.count)

    return build


def _classes(stage: Stage) -> Callable[[Problem], NDArray[np.int64]]:
    """Say which ranks do the same: those of one place on rails of one length."""

    def classes(problem: Problem) -> NDArray[np.int64]:
        tree = hierarchy(problem.topology)
        joined = tree.tiers[stage.tier - 1]
        members = np.diff(joined.starts)[tree.rows[stage.tier]]
        takes_part = tree.is_port[stage.tier - 1].astype(np.int64)
        return classify(tree.size, (takes_part, tree.places(stage.tier), members))

    return classes


def _sum(out: Script, rail: Rail, count: int) -> Writing:
    """Let the owners of a rail add up their chunks."""
    operands, results = (cut(Block(side, 0, count), rail.owners) for side in (INPUT, OUTPUT))
    own = results(rail.me) if rail.me < rail.owners else None
    everybody = range(rail.owners)
    return direct_reduce_scatter(out, rail.members, rail.me, everybody, operands, own, (), 0)


def _gather(out: Script, rail: Rail, count: int) -> Writing:
    """Let the owners of a rail give their chunks to all."""
    chunks = cut(Block(OUTPUT, 0, count), rail.owners)
    return direct_allgather(out, rail.members, rail.me, range(rail.owners), chunks, (), 0)


def _allreduce(out: Script, rail: Rail, count: int) -> Writing:
    """Let a rail add up a segment."""
    source, target = (Block(side, 0, count) for side in (INPUT, OUTPUT))
    return rabenseifner_allreduce(out, rail.members, rail.me, source, target, (), 0)


_WRITERS: dict[str, Callable[[Script, Rail, int], Writing]] = {
    "sum": _sum,
    "gather": _gather,
    "allreduce": _allreduce,
}
