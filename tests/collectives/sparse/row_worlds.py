"""Routes of all ranks in one process: what each sends, hears and does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.builders.row_exchange import (
    COMBINE,
    DISPATCH,
    RowBytes,
    RowProblem,
)
from closeranks.collectives.builders.row_moves import Announcement, RowMoves, announced, heard_moves
from closeranks.collectives.pairs.pair_message import TYPES
from closeranks.collectives.plans.plan_type import Plan
from closeranks.comms.topology.topology import Topology

Ints = NDArray[np.int64]
Pairs = tuple[Ints, Ints]


class World(NamedTuple):
    """Destinations of all ranks, and what follows from them.

    Attributes
    ----------
    topology : Topology
        Where the ranks sit.
    lists : list of list of tuple of int
        Rank, token -> the distinct ranks that want it.
    moves : dict of int to RowMoves
        Of all ranks.
    """

    topology: Topology
    lists: list[list[tuple[int, ...]]]
    moves: dict[int, RowMoves]

    @property
    def arrivals(self) -> list[list[tuple[int, int]]]:
        """Source and token of what each rank gets, in order."""
        return [
            [
                (source, token)
                for source, tokens in enumerate(self.lists)
                for token, ranks in enumerate(tokens)
                if rank in ranks
            ]
            for rank in range(self.topology.size)
        ]


def topology_of(node: Sequence[int]) -> Topology:
    return Topology.from_groups(("node", "rank"), [list(node), list(range(len(node)))])


def pairs_of(tokens: Sequence[Sequence[int]]) -> Pairs:
    found = [(token, rank) for token, ranks in enumerate(tokens) for rank in sorted(set(ranks))]
    table = np.array(found, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def drawn_lists(size: int, chance: random.Random, most: int = 6) -> list[list[tuple[int, ...]]]:
    """Destinations of tokens: few, many, none, and unlike numbers of tokens."""
    favourite = chance.randrange(size)
    lists = []
    for _ in range(size):
        tokens = []
        for _ in range(chance.choice([0, 1, most])):
            wide = chance.choice([0, 1, 2, size])
            ranks = {chance.randrange(size) for _ in range(wide)}
            tokens.append(tuple(sorted(ranks | ({favourite} if chance.random() < 0.3 else set()))))
        lists.append(tokens)
    return lists


def world_of(
    topology: Topology,
    lists: list[list[tuple[int, ...]]],
    *,
    relayed: bool = True,
    origins: list[Ints] | None = None,
) -> World:
    """Work out the moves of all ranks, of rows that may have begun elsewhere."""
    tiers = nodes_of(topology)
    told: dict[int, Announcement] = {
        rank: announced(*pairs_of(tokens), tiers, rank, None if origins is None else origins[rank])
        for rank, tokens in enumerate(lists)
    }
    moves = {}
    for rank, tokens in enumerate(lists):
        heard = [told[source].told.get(rank, np.empty(0, np.int64)) for source in told]
        counts = np.array([len(one) for one in heard])
        moves[rank] = heard_moves(
            len(tokens),
            told[rank],
            np.concatenate(heard),
            counts,
            tiers,
            rank,
            begun=origins is not None,
            relayed=relayed,
        )
    return World(topology, lists, moves)


def problem_of(
    world: World,
    operation: str,
    itemsize: int,
    *,
    row_bytes: Mapping[int, RowBytes] | None = None,
    op: str = "SUM",
    dtype: str = "int64",
) -> RowProblem:
    return RowProblem(
        operation,
        world.topology,
        itemsize=itemsize,
        moves=world.moves,
        row_bytes=row_bytes,
        op=op,
        dtype=TYPES.index(dtype),
    )


def dispatch_plan(world: World, itemsize: int, **more: Any) -> Plan:
    return Plan(problem_of(world, "route_dispatch", itemsize, **more), DISPATCH[1])


def combine_plan(world: World, itemsize: int, **more: Any) -> Plan:
    return Plan(problem_of(world, "route_combine", itemsize, **more), COMBINE[1])


def ran(plan: Plan, inputs: Sequence[NDArray[Any]], seed: int = 0) -> list[NDArray[np.uint8]]:
    flat = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in inputs]
    return simulate(plan, flat, seed=seed)
