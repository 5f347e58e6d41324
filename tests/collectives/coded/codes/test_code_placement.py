"""Workers on ranks: any one node may be lost, or no order allows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from closeranks.collectives.coded import (
    BalancedBlockDesign,
    CyclicMDS,
    CyclicRepetition,
    Expander,
    FractionalRepetition,
    GradientCode,
    Repetition,
    Tree,
)
from closeranks.collectives.coded.codes import code_placement, gradient_code
from closeranks.comms.topology import Topology
from closeranks.errors import CodeError, UsageError
from tests.collectives.coded.codes.code_oracles import can_be_placed, name
from tests.shares import SEED

DAY = 0 if SEED == "all" else int(SEED)

SMALL: list[GradientCode] = [
    *(Repetition(n, s) for n in (1, 2, 5, 6, 7) for s in range(n)),
    *(FractionalRepetition(6, s) for s in (0, 1, 2, 5)),
    *(CyclicRepetition(6, s) for s in range(6)),
    *(CyclicMDS(n, s) for n in (4, 6, 8) for s in range(1, n, 2)),
    *(Tree(2, 2, s) for s in range(2)),
    Tree(3, 1, 1),
    Expander(6, 3),
    BalancedBlockDesign(7, 3),
]


def machine(sizes: list[int], draw: np.random.Generator | None = None) -> Topology:
    """Make nodes of these sizes, with ranks in any order."""
    nodes = np.repeat(np.arange(len(sizes)), sizes)
    if draw is not None:
        nodes = draw.permutation(nodes)
    return Topology.from_groups(("node", "rank"), [nodes, np.arange(len(nodes))])


def partitions(n: int, most: int | None = None) -> Iterator[list[int]]:
    """Give all ways to cut n ranks to nodes."""
    if n == 0:
        yield []
    for first in range(min(n, most or n), 0, -1):
        for rest in partitions(n - first, first):
            yield [first, *rest]


def survives(code: GradientCode, topology: Topology, ranks: np.ndarray) -> bool:
    """Tell whether the sum can be had without any one node."""
    assert sorted(ranks.tolist()) == list(range(code.n))
    node_of = topology.groups[0][ranks]
    return all(code.decodable(np.asarray(node_of != node)) for node in range(node_of.max() + 1))


@pytest.mark.parametrize("code", SMALL, ids=name)
def test_an_order_is_found_where_there_is_one(code: GradientCode) -> None:
    n, draw = code.n, np.random.default_rng([DAY, code.n])
    sets = [[i for i in range(n) if bits >> i & 1] for bits in range(1 << n)]
    decodes = [code.decodable(one) for one in sets]
    for sizes in partitions(n):
        topology = machine(sizes, draw)
        if can_be_placed(sizes, n, decodes.__getitem__):
            ranks = code.place(topology)
            assert ranks.dtype == np.int64
            assert survives(code, topology, ranks), sizes
        else:
            with pytest.raises(CodeError, match="place: no order lets"):
                code.place(topology)


@pytest.mark.parametrize("seed", range(30))
def test_groups_on_nodes_of_any_size(seed: int) -> None:
    draw = np.random.default_rng([DAY, seed])
    sizes = draw.integers(1, 9, int(draw.integers(2, 9))).tolist()
    n = sum(sizes)
    s = int(draw.integers(1, n))
    code, topology = Repetition(n, s), machine(sizes, draw)
    if max(sizes) <= n - n // (s + 1):
        assert survives(code, topology, code.place(topology))
    else:
        with pytest.raises(CodeError):
            code.place(topology)


@pytest.mark.parametrize(("nodes", "ranks", "s"), [(64, 16, 3), (128, 8, 1), (1024, 1, 1)])
def test_a_thousand_ranks(nodes: int, ranks: int, s: int) -> None:
    code = Repetition(nodes * ranks, s)
    topology = Topology.regular(node=nodes, rank=ranks)
    placed = topology.groups[0][code.place(topology)]
    groups = np.array([code.group(worker) for worker in range(code.n)])
    spread = [len(set(placed[groups == group])) for group in range(code.n_groups)]
    assert min(spread) == s + 1  # each member on a node of its own


def test_the_error_names_the_node_and_the_parts() -> None:
    code = Repetition(6, 1)
    topology = machine([1, 4, 1])
    with pytest.raises(CodeError) as caught:
        code.place(topology)
    found = re.search(r"without node (\d), which has (\d) of 6 ranks, .* lacks parts? (.*);",
                      str(caught.value))  # fmt: skip
    assert found
    assert (found[1], found[2]) == ("1", "4")
    assert set(found[3].split(", ")) < {"0", "1", "2"}
    assert "more nodes" in str(caught.value)


def test_one_node_cannot_be_lost() -> None:
    for topology in (Topology.regular(node=1, rank=4), Topology.regular(rank=4)):
        for code in (Repetition(4, 3), CyclicMDS(4, 3), CyclicRepetition(4, 1), Expander(4, 2)):
            with pytest.raises(CodeError, match=r"node 0, which has 4 of 4 ranks.*parts? 0"):
                code.place(topology)


def test_inner_and_outer_levels_do_not_matter() -> None:
    code = Repetition(8, 1)
    topology = Topology.regular(site=2, switch=1, node=2, socket=1, rank=2)
    ranks = code.place(topology)
    assert survives(code, machine([2, 2, 2, 2]), ranks)


def test_a_code_that_only_counts_keeps_the_order() -> None:
    ranks = CyclicRepetition(6, 2).place(machine([2, 2, 2]))
    assert ranks.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.array_equal(Repetition(6, 2).place(machine([2, 2, 2])),
                          Repetition(6, 2).place(machine([2, 2, 2])))  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_what_there_is(seed: int) -> None:
    """Sets that decode are those with one of some drawn sets in them."""
    draw = np.random.default_rng([DAY, seed])
    least = [frozenset(draw.permutation(6)[:size].tolist()) for size in (2, 3, 3, 3, 4)]

    def has_sum(finished: frozenset[int]) -> bool:
        return any(one <= finished for one in least)

    def decodes(bits: int) -> bool:
        return has_sum(frozenset(i for i in range(6) if bits >> i & 1))

    for sizes in partitions(6):
        nodes = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
        found, all_seen = code_placement.search(nodes, has_sum)
        assert np.array_equal(np.bincount(found), sizes)
        assert all_seen
        there = code_placement.lost_node(found, has_sum) is None
        assert there == can_be_placed(sizes, 6, decodes)


def test_nodes_in_turns_suit_a_large_cyclic_code() -> None:
    code, topology = CyclicMDS(64, 15), machine([16, 16, 16, 16])
    assert survives(code, topology, code.place(topology))


def test_a_search_that_gives_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (code_placement, gradient_code):
        monkeypatch.setattr(module, "MOST_TRIES", 300)
    code = CyclicMDS(16, 1)
    with pytest.raises(CodeError, match="none of 300 tried orders lets"):
        code.place(machine([6, 5, 5]))


def test_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match="6 ranks, the code 8 workers"):
        Repetition(8, 1).place(machine([3, 3]))
    with pytest.raises(UsageError, match="topology is 5"):
        Repetition(8, 1).place(5)  # type: ignore[arg-type]
