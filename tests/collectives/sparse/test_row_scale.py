"""One rank's part of a large exchange of rows: little time and memory."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.builders.row_exchange import COMBINE, DISPATCH, RowProblem
from closeranks.collectives.builders.row_moves import announced, heard_moves
from closeranks.collectives.plans.plan_type import Plan
from closeranks.comms.topology.topology import Topology
from tests.pace import slowness

SIZE, ME, TOKENS, CHOICES = 16_384, 5, 512, 8


@pytest.mark.parametrize("build", [DISPATCH[1], COMBINE[1]], ids=["dispatch", "combine"])
def test_steps_of_a_rank_among_many(build) -> None:  # type: ignore[no-untyped-def]
    topology = Topology.regular(node=SIZE // 8, rank=8)
    tiers = nodes_of(topology)
    rng = np.random.default_rng(0)
    wanted = np.sort(rng.choice(SIZE, (TOKENS, CHOICES), replace=False))
    rows = np.repeat(np.arange(TOKENS), CHOICES)
    told = announced(rows, wanted.reshape(-1), tiers, ME)
    heard, counts = [], np.zeros(SIZE, np.int64)
    for source in np.sort(rng.choice(SIZE, TOKENS * CHOICES, replace=False)).tolist():
        theirs = announced(np.zeros(2, np.int64), np.array([ME, ME + 1]), tiers, source).told
        heard.append(theirs[ME])
        counts[source] = len(theirs[ME])
    moves = heard_moves(TOKENS, told, np.concatenate(heard), counts, tiers, ME)
    problem = RowProblem("route", topology, itemsize=2048, moves={ME: moves}, dtype=10)
    plan, took = Plan(problem, build), []
    for _ in range(3):
        started = time.perf_counter()
        plan.script(ME)
        took.append(time.perf_counter() - started)
    assert min(took) < 0.05 * slowness()
    tracemalloc.start()
    plan.script(ME)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
