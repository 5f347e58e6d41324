"""Scan and exscan."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.patterns.over_vector import in_rank_order
from closeranks.collectives.builders.patterns.prefix_scan import (
    chain_exscan,
    chain_scan,
    doubling_exscan,
    doubling_scan,
)
from closeranks.collectives.builders.patterns.round_classes import scan_rounds
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import Ints, along_a_chain, by_rounds


def _doubling(problem: Problem) -> Ints:
    """Classes by rounds, sent and received."""
    ranks = np.arange(problem.size)
    turns = range((problem.size - 1).bit_length())
    received = sum(((ranks >> turn) > 0).astype(np.int64) for turn in turns) + 0 * ranks
    rounds = scan_rounds(problem.size, problem.count)
    return by_rounds(problem.topology, ranks, rounds, (received,))


def _chain(problem: Problem) -> Ints:
    return along_a_chain(problem.topology, np.arange(problem.size))


ALGORITHMS = (
    Algorithm("recursive_doubling", in_rank_order(doubling_scan), classes=_doubling),
    Algorithm("linear", in_rank_order(chain_scan), classes=_chain),
)

ALGORITHMS_EXCLUSIVE = (
    Algorithm("recursive_doubling", in_rank_order(doubling_exscan), classes=_doubling),
    Algorithm("linear", in_rank_order(chain_exscan), classes=_chain),
)
