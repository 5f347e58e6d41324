"""cost counts what simulate moves, and gives the textbook's closed forms."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from math import log2

import numpy as np
import pytest

from closeranks.collectives.analysis.cost_model import cost
from closeranks.collectives.analysis.simulation import moves
from closeranks.collectives.builders.catalogue import ALGORITHMS, algorithms
from closeranks.collectives.plans.collective import VECTOR, Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.selection.planner import plan
from closeranks.comms.topology.topology import Link, Topology
from closeranks.errors import UsageError
from tests.pace import least_shares, slowness

EVERY = [(operation, name) for operation in ALGORITHMS for name in algorithms(operation)]
TOPOLOGIES = [
    Topology.regular(rank=1),
    Topology.regular(rank=5),
    Topology.regular(node=4, rank=2),
    Topology.regular(site=2, node=2, rank=2),
    Topology.from_groups(("node", "rank"), [[0, 1, 2, 0, 1, 2, 0], list(range(7))]),
    Topology.from_groups(("node", "rank"), [[0, 0, 0, 0, 0, 1], list(range(6))]),
    Topology.regular(node=3, rank=5),
]


def problem_of(operation: str, topology: Topology, count: int) -> Problem:
    """Return one problem with uneven counts where the operation has them."""
    size = topology.size
    counts = None
    if operation in VECTOR:
        counts = (np.arange(size) * 3 + count) % 7
    elif operation == "alltoallv":
        counts = (np.arange(size)[:, None] * 5 + np.arange(size) * 3 + count) % 4
    return Problem(operation, topology, count=0 if counts is not None else count, counts=counts)


@pytest.mark.share(3)
@pytest.mark.parametrize(("operation", "name"), EVERY)
def test_cost_equals_the_simulated_moves(operation: str, name: str) -> None:
    for topology in TOPOLOGIES:
        for count in (0, 3, 64):
            count = 0 if operation == "barrier" else count
            problem = problem_of(operation, topology, count)
            algorithm = next(a for a in ALGORITHMS[operation] if a.name == name)
            if algorithm.objection(problem):
                continue
            check(Plan(problem, algorithm))


def check(planned: Plan) -> None:
    """Compare the busiest rank's bytes and messages per level with a count."""
    topology = planned.problem.topology
    nbytes: Counter[tuple[int, str]] = Counter()
    messages: Counter[tuple[int, str]] = Counter()
    for sender, receiver, size in moves(planned):
        if sender != receiver:
            level = topology.levels[topology.level_index(sender, receiver)]
            nbytes[sender, level] += size
            messages[sender, level] += 1
    found = cost(planned)
    for level in topology.levels:
        ranks = range(topology.size)
        where = f"{planned} on\n{topology}\nlevel {level}"
        assert found.bytes_per_level[level] == max(nbytes[r, level] for r in ranks), where
        assert found.messages_per_level[level] == max(messages[r, level] for r in ranks), where


ALPHA, RATE = 3e-6, 2e9


def flat(size: int) -> Topology:
    """One rank a node, one kind of link."""
    names = ("node", "rank")
    link = Link(ALPHA, RATE, None)
    groups = [list(range(size)), list(range(size))]
    return Topology.from_groups(names, groups, links={"node": link, "rank": link})


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64])
def test_closed_forms_of_flat_algorithms(size: int) -> None:
    """Section and table of every form: docs/algorithms.md."""
    rounds, nbytes = log2(size), 4 * size * 1024
    share = (size - 1) / size * nbytes
    forms = {
        ("allreduce", "ring"): (2 * (size - 1), 2 * share),
        ("allreduce", "recursive_doubling"): (rounds, rounds * nbytes),
        ("allreduce", "rabenseifner"): (2 * rounds, 2 * share),
        ("allreduce", "binomial"): (2 * rounds, 2 * rounds * nbytes),
        ("bcast", "binomial"): (rounds, rounds * nbytes),
        ("reduce", "binomial"): (rounds, rounds * nbytes),
    }
    for (operation, name), (latencies, carried) in forms.items():
        found = cost(plan(operation, flat(size), algorithm=name, nbytes=nbytes))
        assert found.seconds == pytest.approx(latencies * ALPHA + carried / RATE), name
    block = nbytes // size
    blocks = {
        ("allgather", "ring"): (size - 1, share),
        ("allgather", "bruck"): (rounds, share),
        ("allgather", "recursive_doubling"): (rounds, share),
        ("reduce_scatter_block", "ring"): (size - 1, share),
        ("alltoall", "pairwise"): (size - 1, share),
        ("alltoall", "bruck"): (rounds, rounds * nbytes / 2),
    }
    for (operation, name), (latencies, carried) in blocks.items():
        found = cost(plan(operation, flat(size), algorithm=name, nbytes=block))
        assert found.seconds == pytest.approx(latencies * ALPHA + carried / RATE), name


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (4, 2), (4, 4), (8, 8)])
def test_closed_forms_of_hierarchical_bytes(nodes: int, ranks: int) -> None:
    """A rail carries 2 (N - 1) / N of its K-th of the data."""
    nbytes = 4 * nodes * ranks * 1024
    topology = Topology.regular(node=nodes, rank=ranks)
    found = cost(plan("allreduce", topology, algorithm="hierarchical_rabenseifner", nbytes=nbytes))
    assert found.bytes_per_level["node"] == 2 * (nodes - 1) * nbytes // nodes // ranks
    assert found.bytes_per_level["rank"] == 2 * (ranks - 1) * nbytes // ranks
    assert found.group_bytes_per_level["node"] == 2 * (nodes - 1) * nbytes // nodes
    block = nbytes // (nodes * ranks)
    gathered = cost(plan("allgather", topology, algorithm="hierarchical", nbytes=block))
    assert gathered.bytes_per_level["node"] == (nodes - 1) * block
    scattered = cost(plan("reduce_scatter_block", topology, algorithm="hierarchical", nbytes=block))
    assert scattered.bytes_per_level["node"] == (nodes - 1) * block
    exchanged = cost(plan("alltoall", topology, algorithm="hierarchical", nbytes=block))
    assert exchanged.messages_per_level["node"] == nodes - 1
    assert exchanged.bytes_per_level["node"] == (nodes - 1) * ranks * block


def test_a_shared_card_divides_its_rate() -> None:
    links = {"node": Link(0.0, 1e9, 1), "rank": Link(0.0, 1e15, None)}
    topology = Topology.from_groups(
        ("node", "rank"), [[0] * 4 + [1] * 4, list(range(8))], links=links
    )
    shared = cost(plan("allgather", topology, algorithm="hierarchical", nbytes=1 << 20))
    assert shared.seconds == pytest.approx(4 * (1 << 20) / 1e9, rel=1e-3)


def test_sixteen_thousand_ranks() -> None:
    topology = Topology.regular(node=2048, rank=8)
    started = time.process_time()
    planned = plan("allreduce", topology, nbytes=1 << 26)
    found = cost(planned)
    assert time.process_time() - started < 10 * slowness()
    assert found.bytes_per_level["node"] < 2 * (1 << 26) / 8 * 1.1

    def share() -> list[float]:
        started = time.process_time()
        assert sum(1 for _ in planned.steps(4321)) > 0
        return [(time.process_time() - started) / 0.05]

    assert max(least_shares(share)) < 1
    tracemalloc.start()
    planned.script(4322)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("operation", "name"),
    [("allreduce", "ring"), ("allgather", "ring"), ("alltoall", "pairwise"), ("gather", "linear")],
)
def test_linear_algorithms_are_lazy_at_sixteen_thousand_ranks(operation: str, name: str) -> None:
    topology = Topology.regular(node=2048, rank=8)
    planned = plan(operation, topology, algorithm=name, count=16384)
    next(iter(planned.steps(5)))

    def shares() -> tuple[float, float]:
        started = time.process_time()
        next(iter(planned.steps(0)))
        first_s = time.process_time() - started
        started = time.process_time()
        steps = sum(1 for _ in planned.steps(0))
        return first_s / 1e-3, (time.process_time() - started) / steps / 3e-6

    first, each = least_shares(shares, tries=8)
    assert first < 1
    assert each < 1


def test_bad_sizes() -> None:
    planned = plan("allreduce", Topology.regular(rank=2), algorithm="ring", count=4)
    with pytest.raises(UsageError, match="nbytes=7; give a multiple"):
        cost(planned, 7)
    with pytest.raises(UsageError, match="nbytes is -4"):
        cost(planned, -4)
    gathered = plan("allgatherv", Topology.regular(rank=2), algorithm="ring", counts=[1, 2])
    with pytest.raises(UsageError, match="give counts="):
        cost(gathered, 8)
    for wrong in ("8", 1.5, float("nan"), [8], 2**62):
        with pytest.raises(UsageError, match="nbytes"):
            cost(planned, wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="plan is 5; give what"):
        cost(5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="speed is 5"):
        cost(planned, speed=5)  # type: ignore[arg-type]


def test_classes_are_only_a_shortcut() -> None:
    """Every rank as its own class gives the same price."""
    for name in algorithms("allreduce"):
        planned = plan("allreduce", Topology.regular(node=4, rank=4), count=1 << 12)
        algorithm = next(a for a in ALGORITHMS["allreduce"] if a.name == name)
        alone = Algorithm(name, algorithm.build)
        assert cost(Plan(planned.problem, algorithm)).seconds == pytest.approx(
            cost(Plan(planned.problem, alone)).seconds, rel=0.02
        ), name
