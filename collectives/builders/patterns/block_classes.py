"""Which ranks do the same in the hierarchical all-gather and reduce-scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.patterns.round_classes import (
    doubling_allgather_rounds,
    halving_rounds,
)
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.port_tree import Hierarchy, hierarchy
from closeranks.collectives.plans.rank_classes import Round, classify

Ints = NDArray[np.int64]


def allgather_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical all-gather, of any blocks."""
    return _classes(problem, doubling_allgather_rounds, ring_skips=-1)


def reduce_scatter_classes(problem: Problem) -> Ints:
    """Return the classes of the hierarchical reduce-scatter, of any blocks."""
    return _classes(problem, halving_rounds, ring_skips=0)


def _classes(
    problem: Problem, rounds: Callable[[Ints], Iterator[Round]], *, ring_skips: int
) -> Ints:
    tree = hierarchy(problem.topology)
    counts = problem.counts
    if counts is None:
        counts = np.full(tree.size, problem.count, dtype=np.int64)
    columns = list(_shares(tree, counts))
    columns += _top(tree, counts, rounds, ring_skips)
    return classify(tree.size, columns)


def _shares(tree: Hierarchy, counts: Ints) -> Iterator[Ints]:
    """Items a port deals with: for its group, for its rail, in how many pieces."""
    pieces = (counts > 0).astype(np.int64)
    for number in range(tree.depth):
        gates, is_port = tree.gates[number], tree.is_port[number]
        keys = tree.rows[number] * tree.ports[number].shape[1] + gates
        share = _sums(keys, counts)
        chunk = _sums(gates, counts)
        yield is_port.astype(np.int64)
        yield np.where(is_port, share, -1)
        yield np.where(is_port, chunk, -1)
        yield np.where(is_port, _sums(keys, pieces), -1)
        pieces = (is_port & (share > 0)).astype(np.int64)
        tier = tree.tiers[number]
        above = tree.rows[number + 1]
        yield np.where(is_port, np.diff(tier.starts)[above], -1)
        full = _filled(tree, number + 1, counts)
        yield np.where(is_port, full, -1)


def _filled(tree: Hierarchy, number: int, counts: Ints) -> Ints:
    """How many of the chunks that a port's rail deals out are not empty."""
    owners = tree.tiers[number - 1].owners
    sums = np.bincount(tree.gates[number], weights=counts)
    filled = (sums.reshape(-1, owners) > 0).sum(axis=1).astype(np.int64)
    found: Ints = filled[tree.gates[number - 1]]
    return found


def _top(
    tree: Hierarchy, counts: Ints, rounds: Callable[[Ints], Iterator[Round]], ring_skips: int
) -> Iterator[Ints]:
    """Give what a port sends along its rail of the last tier."""
    members = tree.tiers[-1].owners
    sums = np.bincount(tree.gates[-1], weights=counts).astype(np.int64)
    kinds, kind = np.unique(sums.reshape(-1, members), axis=0, return_inverse=True)
    ports = tree.is_port[tree.depth - 1]
    rail = np.where(ports, kind.reshape(-1)[tree.gates[tree.depth - 1]], -1)
    place = tree.places(tree.depth)
    sent: dict[int, Ints] = {}
    for number, chunks in enumerate(kinds):
        if members & (members - 1):
            table = [np.roll(chunks, ring_skips)]
        else:
            table = [np.where(goal >= 0, items, 0) for goal, items in rounds(chunks)]
        here = rail == number
        for index, column in enumerate(table):
            found = sent.setdefault(index, np.full(tree.size, -1, dtype=np.int64))
            found[here] = column[place[here]]
    yield from sent.values()


def _sums(keys: Ints, weights: Ints) -> Ints:
    """Sum of the weights of all ranks with the same key, for each rank."""
    sums = np.bincount(keys, weights=weights).astype(np.int64)
    found: Ints = sums[keys]
    return found
