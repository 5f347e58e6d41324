"""Plans of sparse all-reduces, simulated: any map of ranks to nodes, any pairs."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.collectives.analysis.cost_model import cost
from closeranks.collectives.analysis.simulation import _Run, simulate
from closeranks.collectives.builders.catalogue import SPARSE
from closeranks.collectives.builders.sparse_allreduce import regions
from closeranks.collectives.pairs.pair_message import (
    HEADER_BYTES,
    IndexForm,
    PairHeader,
    header_of,
    indices_of,
    kind_of,
    values_of,
    write_message,
)
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.sparse.pair_prices import pair_prices
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology

Pairs = tuple[np.ndarray, np.ndarray]
ALGORITHMS = SPARSE["allreduce_sparse"]


def _input(pairs: Pairs, cuts: np.ndarray, length: int) -> np.ndarray:
    indices, values = pairs
    start = HEADER_BYTES + cuts.nbytes
    kind = kind_of("SUM", values.dtype)
    header = PairHeader(IndexForm.WHOLE, len(indices), 0, length, kind, 1, start, 8 * len(indices))
    message = np.empty(header.nbytes, np.uint8)
    write_message(message, header, indices, values)
    message[HEADER_BYTES:start].view(np.int64)[:] = cuts
    return message


def _problem(nodes: list[int], length: int, commutative: bool = True, count: int = 5) -> Problem:
    topology = Topology.from_groups(("node", "rank"), [nodes, list(range(len(nodes)))])
    return Problem(
        "allreduce_sparse", topology, count=count, itemsize=8, length=length,
        commutative=commutative,
    )  # fmt: skip


def _sum(ranks: list[Pairs]) -> tuple[list[int], list[float]]:
    found: dict[int, float] = {}
    for indices, values in ranks:
        for index, value in zip(indices.tolist(), values.tolist(), strict=True):
            found[index] = found.get(index, 0) + value
    return sorted(found), [found[index] for index in sorted(found)]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], int, list[Pairs], list[int]]:
    """Draw nodes of ranks, a length, pairs of each rank, and cuts."""
    nodes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
    length = draw(st.sampled_from([1, 5, 100, 1 << 40]))
    some = st.lists(st.integers(0, length - 1), max_size=8, unique=True).map(sorted)
    ranks = [np.array(draw(some), np.int64) for _ in nodes]
    pairs = [(indices, indices % 7 + rank + 1.0) for rank, indices in enumerate(ranks)]
    cuts = draw(st.lists(st.integers(0, length), min_size=8, max_size=8).map(sorted))
    return nodes, length, pairs, cuts


@settings(max_examples=60, deadline=None)
@given(jobs(), st.sampled_from(ALGORITHMS), st.booleans(), st.integers(0, 99))
def test_every_rank_gets_the_sum(
    job: tuple[list[int], int, list[Pairs], list[int]],
    algorithm: Algorithm,
    commutative: bool,
    seed: int,
) -> None:
    nodes, length, pairs, some = job
    problem = _problem(nodes, length, commutative)
    inner = sorted((some * 2)[: regions(problem) - 1])
    cuts = np.array([0, *inner, length], np.int64)
    inputs = [_input(one, cuts, length) for one in pairs]
    wanted = _sum(pairs)
    for output in simulate(Plan(problem, algorithm), inputs, seed=seed):
        header = header_of(output)
        found = indices_of(output, header).tolist(), values_of(output, header).tolist()
        assert found == wanted
        assert output.nbytes == header.nbytes


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.name)
def test_the_wire_carries_each_sum_once(algorithm: Algorithm) -> None:
    """Ranks with the same pairs send no more over the wire than one rank a node would."""
    length, indices = 4000, np.arange(0, 4000, 10)
    sent = []
    for per_node in (1, 4):
        nodes = [node for node in range(3) for _ in range(per_node)]
        problem = _problem(nodes, length)
        cuts = np.linspace(0, length, regions(problem) + 1).astype(np.int64)
        inputs = [_input((indices, np.ones(len(indices))), cuts, length) for _ in nodes]
        run = _Run(Plan(problem, algorithm), inputs, np.add, random.Random(1), in_place=False)
        run.go()
        sent.append(sum(size for a, b, size in run.moves if nodes[a] != nodes[b]))
    assert sent[1] <= 1.1 * sent[0] + 3 * 12 * HEADER_BYTES


def test_a_price_follows_the_pairs() -> None:
    topology = Topology.regular(node=4, rank=2)
    for algorithm in ALGORITHMS:
        few, many = (
            cost(
                Plan(Problem("allreduce_sparse", topology, count=count, length=1 << 24), algorithm)
            )
            for count in (1000, 100_000)
        )
        ratio = many.bytes_per_level["node"] / few.bytes_per_level["node"]
        assert 40 < ratio < 110


def test_ordered_operands_are_added_in_rank_order() -> None:
    nodes = [0, 1, 0, 1]
    problem = _problem(nodes, 4, commutative=False)
    cuts = np.arange(regions(problem) + 1)
    values = [1e16, 1.0, -1e16, 1.0]
    wanted = ((values[0] + values[1]) + values[2]) + values[3]
    inputs = [_input((np.arange(4), np.full(4, value)), cuts, 4) for value in values]
    split = next(one for one in ALGORITHMS if one.name == "split")
    for output in simulate(Plan(problem, split), inputs):
        assert values_of(output, header_of(output)).tolist() == [wanted] * 4


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1, 2, 2], [0, 1, 0, 2, 2, 3, 3, 3], [0, 0, 0]])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.name)
def test_classes_change_no_price(algorithm: Algorithm, nodes: list[int]) -> None:
    problem = _problem(nodes, 1 << 20, count=1000)
    known = cost(Plan(problem, algorithm))
    alone = cost(Plan(problem, replace(algorithm, classes=None)))
    assert known.bytes_per_level == alone.bytes_per_level
    assert known.messages_per_level == alone.messages_per_level
    assert known.seconds == pytest.approx(alone.seconds, rel=0.1)


@pytest.mark.serial
def test_prices_of_many_ranks_are_there_at_once() -> None:
    topology = Topology.regular(node=128, rank=8)
    problem = Problem("allreduce_sparse", topology, count=1000, length=1 << 24)
    began = time.perf_counter()
    prices = pair_prices(problem)
    assert time.perf_counter() - began < 0.5
    assert set(prices) == {"doubling", "split", "dense"}


@pytest.mark.serial
def test_steps_of_16384_ranks() -> None:
    topology = Topology.regular(node=2048, rank=8)
    for operation, listed in SPARSE.items():
        if operation not in ("allreduce_sparse", "reduce_scatter_sparse"):
            continue
        for algorithm in listed:
            plan = Plan(Problem(operation, topology, count=1000, length=1 << 24), algorithm)
            plan.script(1)
            began = time.perf_counter()
            _, steps = plan.script(77)
            assert time.perf_counter() - began < 0.15  # 22 ms alone
            assert len(steps) < 10_000


@pytest.mark.parametrize(
    ("count", "wanted"), [(16, "doubling"), (1 << 18, "split"), (1 << 24, "dense")]
)
def test_the_price_follows_the_density(count: int, wanted: str) -> None:
    links = {"node": Link(4e-5, 22e6), "rank": Link(1e-5, 2e9)}
    topology = Topology.regular(node=4, rank=2).with_links(links)
    prices = pair_prices(Problem("allreduce_sparse", topology, count=count, length=1 << 24))
    assert min(prices, key=prices.__getitem__) == wanted, prices


def test_more_nodes_than_messages_inside_of_one() -> None:
    """From 17 nodes on a port packs the results of all of them."""
    nodes, length = [node for node in range(17) for _ in range(2)], 300
    problem, draw = _problem(nodes, length), np.random.default_rng(1)
    pairs = []
    for rank in range(len(nodes)):
        indices = np.unique(draw.integers(0, length, 5))
        pairs.append((indices, indices % 7 + rank + 1.0))
    cuts = np.linspace(0, length, regions(problem) + 1).astype(np.int64)
    split = next(one for one in ALGORITHMS if one.name == "split")
    wanted = _sum(pairs)
    for output in simulate(Plan(problem, split), [_input(one, cuts, length) for one in pairs]):
        header = header_of(output)
        assert (indices_of(output, header).tolist(), values_of(output, header).tolist()) == wanted
