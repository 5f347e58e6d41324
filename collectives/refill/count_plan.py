"""The steps of one rank for all counts that share them, with what the world adds.

Local: each rank has conditions of its own.  Whether two ranks share steps for
the same counts makes no difference to the messages between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from closeranks.collectives.engine.bound_plan import piece_bytes
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.count_record import sized_table
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.table_columns import Kind

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World


class CountPlan:
    """The steps of a rank for all counts that share them.

    Local.

    Parameters
    ----------
    plan : Plan
        Of one of these counts.
    world : World
        Whose rank it is.

    Attributes
    ----------
    plan, world
        As given.
    steps : SizedTable
        The steps, and how their numbers follow from the count.
    longest : ndarray of int64
        Of each step that is a message the longest piece, in bytes.
    levels : ndarray of int64
        Of each step that sends the level of its message; else how many there are.

    Raises
    ------
    Unfollowed
        If each count has steps of its own, see `sized_table`.
    """

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan, self.world = plan, world
        self.steps = sized_table(plan, world.rank)
        rows, topology, rank = self.steps.table.rows, world.topology, world.rank
        kinds, peers = rows[:, columns.KIND], rows[:, columns.PEER]
        others = set(peers[peers >= 0].tolist())
        longest = {peer: piece_bytes(topology, rank, peer) for peer in others}
        self.longest = np.array([longest.get(peer, 1) for peer in peers.tolist()], np.int64)
        self.levels = np.full(len(rows), len(topology.levels), np.int64)
        sends = kinds == Kind.SEND
        found = topology.level_indices(np.full(int(sends.sum()), rank), peers[sends])
        self.levels[sends] = np.minimum(found, len(topology.levels))
