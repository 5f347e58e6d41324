"""Barrier: flat, and one that crosses each outer level as seldom as it can.

In the hierarchical barrier, signals climb a binomial tree in every group to
its first port.  The first ports of the last tier meet by dissemination.  Then
the signals descend the same trees.  Between N nodes these are ``ceil(log2 N)``
messages a leader.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from closeranks.collectives.builders.patterns.bruck import binomial_barrier, dissemination
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    depth,
    shift_rounds,
)
from closeranks.collectives.builders.patterns.tier_classes import barrier_classes
from closeranks.collectives.builders.patterns.trees import binomial_bcast, children, parent, turn_of
from closeranks.collectives.plans.block import OUTPUT, Block
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Writing, seats
from closeranks.collectives.plans.port_tree import Rail, flat, hierarchy
from closeranks.collectives.plans.rank_classes import Ints, by_rounds
from closeranks.collectives.plans.schedule import After, Schedule


def _dissemination(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    return dissemination(out, members, me, (), 0)


def _dissemination_classes(problem: Problem) -> Ints:
    signals = [1] * (problem.size - 1).bit_length()
    return by_rounds(problem.topology, problem.order, shift_rounds(problem.size, signals))


def _binomial(out: Schedule, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    return binomial_barrier(out, members, me, (), 0)


def _binomial_classes(problem: Problem) -> Ints:
    size, signals = problem.size, np.ones(problem.size, dtype=np.int64)
    rounds = (*binomial_up_rounds(size, signals), *binomial_down_rounds(size, signals))
    return by_rounds(problem.topology, problem.order, rounds, (depth(size),))


ALGORITHMS = (
    Algorithm("dissemination", _dissemination, classes=_dissemination_classes),
    Algorithm("binomial", _binomial, classes=_binomial_classes),
)


_SIGNAL = Block(OUTPUT, 0, 0)


def build(out: Schedule, problem: Problem) -> Generator[None, None, None]:
    """Write one rank's part of a barrier.

    Parameters
    ----------
    out : Schedule
        The pen.
    problem : Problem
        ``barrier``.
    """
    tree = hierarchy(problem.topology)
    climbed: list[Rail] = []
    ready: After = ()
    for rail in tree.rails(out.rank):
        if rail.tier == tree.depth:
            ready = (yield from dissemination(out, rail.members, rail.me, ready, 0)).done
            break
        climbed.append(rail)
        ready = _climb(out, rail.members, rail.me, ready)
        if rail.me:
            break
    for rail in reversed(climbed):
        slot = len(rail.members).bit_length()
        spread = yield from binomial_bcast(
            out, rail.members, rail.me, _SIGNAL, _SIGNAL, ready, slot, empty=True
        )
        ready = spread.done


def _climb(out: Schedule, members: list[int], me: int, ready: After) -> After:
    """Tell the place above that this subtree is here."""
    for child, _ in children(me, len(members)):
        ready += (out.receive(members[child], _SIGNAL, turn_of(child), empty=True),)
    if me:
        out.send(members[parent(me)], _SIGNAL, turn_of(me), ready, empty=True)
    return ready


HIERARCHICAL = (Algorithm("hierarchical", build, refuses=flat, classes=barrier_classes),)
