"""Flat reduce."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.flat.over_vector import order, order_from_root, seats_from_root
from closeranks.collectives.builders.patterns.binomial_tree import binomial_reduce
from closeranks.collectives.builders.patterns.linear import linear_gather
from closeranks.collectives.builders.patterns.recursive_halving import rabenseifner_reduce
from closeranks.collectives.builders.patterns.ring import ring_reduce_scatter
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_up_rounds,
    rabenseifner_rounds,
)
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import cut
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import (
    Ints,
    by_rounds,
    classify,
    levels,
    placed,
    round_the_ring,
)
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Stage, Writing, seats


def _blocks(out: Script, problem: Problem) -> tuple[Block, Block | None]:
    """Operand, and result on the root."""
    target = Block(OUTPUT, 0, problem.count) if out.rank == problem.root else None
    return Block(INPUT, 0, problem.count), target


def _binomial(out: Script, problem: Problem) -> Writing:
    """To the root; where operands must keep their places to rank 0, which hands on."""
    members, me = seats_from_root(problem, out.rank)
    source, target = _blocks(out, problem)
    if members[0] == problem.root:
        return (yield from binomial_reduce(out, members, me, source, target, (), 0))
    last = problem.size.bit_length()
    found = None if me else Block(out.scratch(problem.count), 0, problem.count)
    stage = yield from binomial_reduce(out, members, me, source, found, (), 0)
    if found is not None:
        return Stage((), (out.send(problem.root, found, last, stage.done),))
    if target is not None:
        return Stage((out.receive(members[0], target, last, stage.over),))
    return stage


def _binomial_classes(problem: Problem) -> Ints:
    members = order_from_root(problem)
    rounds = binomial_up_rounds(problem.size, np.full(problem.size, problem.count))
    leads = np.arange(problem.size) == 0
    return by_rounds(problem.topology, members, rounds, (leads,))


def _rabenseifner(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    source, target = _blocks(out, problem)
    return rabenseifner_reduce(out, members, me, members.index(problem.root), source, target, (), 0)


def _place_of_root(problem: Problem) -> int:
    return int(np.flatnonzero(order(problem) == problem.root)[0])


def _rabenseifner_classes(problem: Problem) -> Ints:
    rounds = rabenseifner_rounds(problem.size, problem.count, _place_of_root(problem))
    return by_rounds(problem.topology, order(problem), rounds)


def _ring(out: Script, problem: Problem) -> Writing:
    """Reduce-scatter round the ring; every rank hands its chunk to the root."""
    members, me = seats(problem, out.rank)
    source, target = _blocks(out, problem)
    operands, root = cut(source, problem.size), members.index(problem.root)
    if target is None:
        count = operands(me).count
        own = Block(out.scratch(count), 0, count)
        places = cut(source, problem.size)
    else:
        places = cut(target, problem.size)
        own = places(me)
    summed = yield from ring_reduce_scatter(
        out, members, me, operands, own, operands.largest, (), 0
    )
    return (
        yield from linear_gather(out, members, me, root, own, places, summed.over, problem.size)
    )


def _ring_classes(problem: Problem) -> Ints:
    topology, members, size = problem.topology, order(problem), problem.size
    chunks = np.diff(problem.count * np.arange(size + 1) // size)
    root = np.full(size, _place_of_root(problem))
    to_root = placed(members, levels(topology, members, root))
    ring = round_the_ring(topology, members, chunks, reduces=True)
    return classify(size, (ring, to_root))


ALGORITHMS = (
    Algorithm("binomial", _binomial, classes=_binomial_classes),
    Algorithm("rabenseifner", _rabenseifner, classes=_rabenseifner_classes),
    Algorithm("ring", _ring, commutative=True, classes=_ring_classes),
)
