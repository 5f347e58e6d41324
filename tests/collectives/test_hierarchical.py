"""Hierarchical plans: what they send is the least there is, and classes tell the truth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from closeranks.collectives.analysis.cost_model import cost
from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.builders.catalogue import HIERARCHICAL, find
from closeranks.collectives.builders.patterns import segments as cutting
from closeranks.collectives.plans.collective import ROOTED, VECTOR, Problem, meaning
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Kind
from closeranks.comms.topology.topology import Topology

LISTED = [(operation, a) for operation, listed in HIERARCHICAL.items() for a in listed]
NAMES = [f"{operation}-{algorithm.name}" for operation, algorithm in LISTED]


def nodes(*node: int) -> Topology:
    return Topology.from_groups(("node", "rank"), [list(node), list(range(len(node)))])


TOPOLOGIES = {
    "uneven round-robin": nodes(0, 1, 2, 0, 1, 2, 0),
    "one and five": nodes(0, 1, 1, 1, 1, 1),
    "five and one": nodes(0, 0, 0, 0, 0, 1),
    "shuffled": nodes(0, 1, 2, 0, 0, 2, 1, 2, 0, 2, 0),
    "sites": Topology.regular(site=2, node=2, rank=2),
    "uneven sites": Topology.from_groups(
        ("site", "node", "rank"),
        [[0] * 5 + [1] * 7, [0, 0, 1, 1, 2, 3, 3, 3, 4, 4, 4, 5], list(range(12))],
    ),
    "parts of nodes": Topology.regular(node=2, numa=2, rank=2),
}
EVERY = pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=list(TOPOLOGIES))
EACH = pytest.mark.parametrize(("operation", "algorithm"), LISTED, ids=NAMES)


def problem_of(operation: str, topology: Topology, count: int, **options: int) -> Problem:
    """A problem of blocks of ``count`` items, for v-operations of unequal ones."""
    problem = Problem(operation, topology, root=options.get("root", 0))
    size = topology.size
    if operation == "alltoallv":
        return replace(problem, counts=np.full((size, size), count))
    if operation in VECTOR:
        return replace(problem, counts=np.arange(size) % 3 * count)
    return problem if operation == "barrier" else replace(problem, count=count)


def prove(plan: Plan, seed: int) -> None:
    chance = np.random.default_rng(seed)
    problem = plan.problem
    inputs = [chance.integers(0, 99, problem.input_items(r)) for r in range(plan.size)]
    found = simulate(plan, inputs, seed=seed)
    for got, want in zip(found, meaning(problem, inputs), strict=True):
        assert want is not None
        assert got.tolist() == want.tolist()


def sent(plan: Plan, rank: int) -> dict[int, tuple[int, int]]:
    """Level -> messages and bytes that ``rank`` sends over it."""
    script, steps = plan.written(rank, plan.problem)
    found: dict[int, tuple[int, int]] = {}
    for step in steps:
        if step.kind != Kind.SEND:
            continue
        assert step.block is not None
        count = step.block.count
        count = count if count >= 0 else script.registers[~count]
        unit = script.buffers[step.block.buffer].unit or plan.problem.itemsize
        level = plan.problem.topology.level_index(rank, step.peer)
        messages, nbytes = found.get(level, (0, 0))
        found[level] = messages + 1, nbytes + count * step.block.repeat * unit
    return found


@pytest.mark.share(3)
@EVERY
@EACH
def test_right_on_irregular_topologies(
    operation: str, algorithm: Algorithm, topology: Topology
) -> None:
    for root in range(topology.size) if operation in ROOTED else (0,):
        for count in (0, 1, topology.size + 2) if root == 0 else (3,):
            problem = problem_of(operation, topology, count, root=root)
            if algorithm.objection(problem) is None:
                prove(Plan(problem, algorithm), seed=root + count)


OF_VECTORS = [n for n in NAMES if n.split("-")[0] in ("allreduce", "bcast", "reduce")]


@pytest.mark.parametrize("name", OF_VECTORS)
def test_right_in_segments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, algorithm = LISTED[NAMES.index(name)]
    monkeypatch.setattr(cutting, "LEAST_BYTES", 8)
    for topology in (TOPOLOGIES["uneven round-robin"], TOPOLOGIES["uneven sites"]):
        problem = Problem(operation, topology, count=50, itemsize=1 << 20)
        assert cutting.segments(problem, 16) > 1
        prove(Plan(problem, algorithm), seed=1)


@EVERY
@EACH
def test_ranks_of_a_class_send_the_same(
    operation: str, algorithm: Algorithm, topology: Topology
) -> None:
    for count in (0, 1, 5, 24):
        problem = problem_of(operation, topology, count, root=topology.size - 1)
        if operation not in ROOTED:
            problem = replace(problem, root=0)
        plan = Plan(problem, algorithm)
        by_class: dict[int, dict[int, tuple[int, int]]] = {}
        for rank, number in enumerate(plan.classes().tolist()):
            found = sent(plan, rank)
            assert by_class.setdefault(number, found) == found, (rank, count)


def test_classes_are_few_on_a_large_machine() -> None:
    machine = Topology.regular(node=2048, rank=8)
    for operation, algorithm in LISTED:
        if operation == "alltoallv":
            continue
        problem = problem_of(operation, machine, 1 << 20)
        if operation in VECTOR:
            problem = replace(problem, counts=np.full(machine.size, 16))
        assert len(np.unique(Plan(problem, algorithm).classes())) <= 32, (operation, algorithm.name)


def test_steps_of_a_rank_are_few_on_a_large_machine() -> None:
    machine = Topology.regular(node=2048, rank=8)
    steps = {}
    for operation, name in (("allreduce", "hierarchical_doubling"), ("bcast", "hierarchical")):
        plan = Plan(problem_of(operation, machine, 256), find(operation, name))
        steps[operation] = sum(1 for _ in plan.steps(9999))
    assert steps["allreduce"] < 100
    assert steps["bcast"] < 50


def busiest(operation: str, name: str, topology: Topology, count: int) -> dict[str, int]:
    problem = problem_of(operation, topology, count)
    return cost(Plan(problem, find(operation, name))).bytes_per_level


N, K, M = 4, 4, 64  # nodes, ranks a node, items of a block
MACHINE = Topology.regular(node=N, rank=K)
regular = partial(busiest, topology=MACHINE)


@pytest.mark.parametrize("name", ["hierarchical_ring", "hierarchical_rabenseifner"])
def test_allreduce_sends_the_closed_form(name: str) -> None:
    nbytes = 4 * M * K
    found = regular("allreduce", name, count=M * K)
    assert found["node"] == 2 * (N - 1) * nbytes // (N * K)
    assert found["rank"] == 2 * (K - 1) * nbytes // K


def test_leaders_send_everything_through_one_card() -> None:
    found = regular("allreduce", "leader", count=M * K)
    assert found["node"] == 2 * (N - 1) * 4 * M * K // N


@pytest.mark.parametrize("operation", ["allgather", "reduce_scatter_block"])
def test_blocks_cross_between_nodes_once_a_rail(operation: str) -> None:
    found = regular(operation, "hierarchical", count=M)
    assert found["node"] == (N - 1) * 4 * M
    assert found["rank"] == (K - 1) * N * 4 * M


def test_alltoall_sends_few_messages_and_no_byte_more() -> None:
    plan = Plan(problem_of("alltoall", MACHINE, M), find("alltoall", "hierarchical"))
    found = cost(plan)
    assert sum(found.messages_per_level.values()) == N + K - 2
    assert found.bytes_per_level["node"] == (N - 1) * K * 4 * M


def test_rails_share_the_work_of_the_roots_node() -> None:
    everything = 4 * M * (N - 1) * K
    assert regular("bcast", "hierarchical_scatter_allgather", count=M)["node"] <= 2 * 4 * M // K
    assert regular("scatter", "hierarchical", count=M)["node"] == everything // K
    assert regular("scatterv", "hierarchical", count=M)["node"] <= everything // K
    assert regular("reduce", "hierarchical", count=M)["node"] == 4 * M // K


def test_three_tiers_of_allreduce_send_the_closed_form() -> None:
    sites = Topology.regular(site=2, node=4, rank=4)
    found = busiest("allreduce", "hierarchical_ring", sites, 1024)
    assert found == {
        "site": 2 * 4096 // 16 // 2,
        "node": 2 * 4096 // 4 * 3 // 4,
        "rank": 2 * 4096 * 3 // 4,
    }


def test_no_rank_leaves_the_barrier_before_all_are_there() -> None:
    for topology in TOPOLOGIES.values():
        plan = Plan(Problem("barrier", topology), find("barrier", "hierarchical"))
        assert known_at_the_end(plan) == [set(range(plan.size))] * plan.size


def known_at_the_end(plan: Plan) -> list[set[int]]:
    """Whose arrival each rank's end implies: follow every message backwards."""
    scripts = [plan.script(rank)[1] for rank in range(plan.size)]
    known = [[{rank} for _ in steps] for rank, steps in enumerate(scripts)]
    for _ in range(4 * plan.size):
        posted = {
            (rank, step.peer, step.slot): known[rank][index]
            for rank, steps in enumerate(scripts)
            for index, step in enumerate(steps)
            if step.kind == Kind.SEND
        }
        for rank, steps in enumerate(scripts):
            for index, step in enumerate(steps):
                if step.kind == Kind.RECEIVE:
                    known[rank][index] |= posted[step.peer, rank, step.slot]
                for earlier in step.after:
                    known[rank][index] |= known[rank][earlier]
    return [set().union(*found) for found in known]


def test_one_level_is_refused() -> None:
    for flat in (Topology.regular(rank=4), Topology.regular(node=4, rank=1), nodes(0, 0, 0)):
        for operation, algorithm in LISTED:
            objection = algorithm.objection(problem_of(operation, flat, 1))
            assert objection == "the topology has a single level, so there is no hierarchy to use"


def test_sums_that_must_keep_rank_order_are_refused_where_they_cannot() -> None:
    algorithm = find("allreduce", "hierarchical_doubling")
    ordered = replace(problem_of("allreduce", nodes(0, 0, 1, 1), 3), commutative=False)
    mixed = replace(problem_of("allreduce", nodes(0, 1, 0, 1), 3), commutative=False)
    assert algorithm.objection(ordered) is None
    assert "not consecutive" in str(algorithm.objection(mixed))


def test_unknown_links_mean_one_segment() -> None:
    problem = Problem("allreduce", MACHINE, count=1 << 24)
    assert cutting.segments(problem, 16) > 1
    unknown = MACHINE.with_links({"node": replace(MACHINE.links["node"], bytes_per_s=None)})
    assert cutting.segments(replace(problem, topology=unknown), 16) == 1
