"""Flat all-to-all, of equal blocks and of given counts."""

from __future__ import annotations

from functools import partial

import numpy as np

from closeranks.collectives.builders.patterns.bruck import bruck_alltoall
from closeranks.collectives.builders.patterns.pairwise_exchange import (
    PAIRED,
    POSTED,
    pairwise_alltoall,
)
from closeranks.collectives.builders.patterns.round_classes import bruck_items, shift_rounds
from closeranks.collectives.plans.block import INPUT, OUTPUT, Block
from closeranks.collectives.plans.chunks import Chunks, even, packed
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import Ints, by_rounds, classify, to_everybody
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Writing, seats


def _exchange(out: Script, problem: Problem, *, width: int) -> Writing:
    members, me = seats(problem, out.rank)
    source, target = _blocks(out, problem)
    return pairwise_alltoall(
        out,
        members,
        me,
        lambda j: source(members[j]),
        lambda j: target(members[j]),
        (),
        0,
        width=width,
    )


def _blocks(out: Script, problem: Problem) -> tuple[Chunks, Chunks]:
    """Blocks by rank, before and after."""
    if problem.counts is None:
        return even(INPUT, problem.count), even(OUTPUT, problem.count)
    sent, received = problem.sent_by(out.rank), problem.received_by(out.rank)
    return packed(INPUT, sent), packed(OUTPUT, received)


def _classes(problem: Problem) -> Ints:
    if problem.counts is None:
        return to_everybody(problem.topology, np.full(problem.size, problem.count))
    columns = []
    for row in problem.topology.groups:
        inside = row[:, None] == row[None, :]
        columns.append(np.where(inside, problem.counts, 0).sum(axis=1))
        columns.append((inside & (problem.counts > 0)).sum(axis=1))
    columns += [problem.counts.sum(axis=1), (problem.counts > 0).sum(axis=1)]
    return classify(problem.size, columns)


def _bruck(out: Script, problem: Problem) -> Writing:
    size, items = problem.size, problem.size * problem.count
    source, target = Block(INPUT, 0, items), Block(OUTPUT, 0, items)
    return bruck_alltoall(out, range(size), out.rank, source, target, (), 0)


def _bruck_classes(problem: Problem) -> Ints:
    size = problem.size
    rounds = shift_rounds(size, bruck_items(size, problem.count, alltoall=True))
    return by_rounds(problem.topology, np.arange(size), rounds)


_ANY_COUNTS = (
    Algorithm("pairwise", partial(_exchange, width=PAIRED), classes=_classes),
    Algorithm("linear", partial(_exchange, width=POSTED), classes=_classes),
)

ALGORITHMS = (*_ANY_COUNTS, Algorithm("bruck", _bruck, classes=_bruck_classes))

ALGORITHMS_V = _ANY_COUNTS
