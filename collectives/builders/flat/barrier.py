"""Flat barrier."""

from __future__ import annotations

import numpy as np

from closeranks.collectives.builders.patterns.dissemination import binomial_barrier, dissemination
from closeranks.collectives.builders.patterns.round_classes import (
    binomial_down_rounds,
    binomial_up_rounds,
    depth,
    shift_rounds,
)
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm
from closeranks.collectives.plans.rank_classes import Ints, by_rounds
from closeranks.collectives.plans.schedule import Script
from closeranks.collectives.plans.stage import Writing, seats


def _dissemination(out: Script, problem: Problem) -> Writing:
    members, me = seats(problem, out.rank)
    return dissemination(out, members, me, (), 0)


def _dissemination_classes(problem: Problem) -> Ints:
    signals = [1] * (problem.size - 1).bit_length()
    return by_rounds(problem.topology, problem.order, shift_rounds(problem.size, signals))


def _binomial(out: Script, problem: Problem) -> Writing:
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
