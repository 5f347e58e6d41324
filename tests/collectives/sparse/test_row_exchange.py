"""Plans of rows in simulation: right on any nodes, and each row crosses to a node once."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from closeranks.collectives.analysis import simulation
from closeranks.collectives.builders.patterns.two_tiers import nodes_of
from closeranks.collectives.builders.row_exchange import RowBytes
from closeranks.collectives.builders.row_moves import origin_of
from closeranks.collectives.pairs.pair_message import TYPES
from tests.collectives.sparse.row_worlds import (
    World,
    combine_plan,
    dispatch_plan,
    drawn_lists,
    ran,
    topology_of,
    world_of,
)

WORLDS = st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 2**32), st.booleans()
)
Lists = list[list[tuple[int, ...]]]
FEW = settings(max_examples=40, deadline=None)


def drawn(asked: tuple[list[int], int, bool]) -> tuple[World, random.Random]:
    node, seed, relayed = asked
    chance = random.Random(seed)
    return world_of(topology_of(node), drawn_lists(len(node), chance), relayed=relayed), chance


def tokens_of(world: World, width: int) -> list[NDArray[np.int32]]:
    """Rows that say whose they are."""
    return [
        (1000 * rank + np.arange(len(tokens)))[:, None].repeat(width, 1).astype(np.int32)
        for rank, tokens in enumerate(world.lists)
    ]


@given(WORLDS)
@FEW
def test_each_rank_gets_its_rows_in_the_order_of_sources_and_tokens(
    asked: tuple[list[int], int, bool],
) -> None:
    world, chance = drawn(asked)
    width = chance.choice([1, 2, 3])
    found = ran(dispatch_plan(world, 4 * width), tokens_of(world, width), chance.randrange(99))
    for rank, wanted in enumerate(world.arrivals):
        rows = found[rank].view(np.int32).reshape(-1, width)
        assert rows.tolist() == [[1000 * source + token] * width for source, token in wanted]
        moves = world.moves[rank]
        assert list(zip(moves.sources.tolist(), moves.tokens.tolist(), strict=True)) == wanted


@given(WORLDS)
@FEW
def test_rows_that_go_onward_stay_in_the_order_of_their_origins(
    asked: tuple[list[int], int, bool],
) -> None:
    first, chance = drawn(asked)
    size = first.topology.size
    there = [
        [tuple(sorted({chance.randrange(size) for _ in range(2)})) for _ in wanted]
        for wanted in first.arrivals
    ]
    origins = [origin_of(moves.sources, moves.tokens) for moves in first.moves.values()]
    world = world_of(first.topology, there, relayed=asked[2], origins=origins)
    rows = [
        np.array([1000 * source + token for source, token in wanted], np.int32)
        for wanted in first.arrivals
    ]
    found = ran(dispatch_plan(world, 4), rows, chance.randrange(99))
    for rank, moves in world.moves.items():
        expected = sorted(
            one
            for wanted, ranks in zip(first.arrivals, there, strict=True)
            for one, whither in zip(wanted, ranks, strict=True)
            if rank in whither
        )
        assert list(zip(moves.sources.tolist(), moves.tokens.tolist(), strict=True)) == expected
        assert found[rank].view(np.int32).tolist() == [1000 * a + b for a, b in expected]


@given(WORLDS)
@FEW
def test_sums_come_back(asked: tuple[list[int], int, bool]) -> None:
    world, chance = drawn(asked)
    width = chance.choice([1, 3])
    inputs = [
        (1 + rank + np.arange(len(wanted) * width)).reshape(-1, width)
        for rank, wanted in enumerate(world.arrivals)
    ]
    found = ran(combine_plan(world, 8 * width), inputs, chance.randrange(99))
    for source, tokens in enumerate(world.lists):
        total = np.zeros((len(tokens), width), np.int64)
        for rank, wanted in enumerate(world.arrivals):
            for row, (whose, token) in enumerate(wanted):
                if whose == source:
                    total[token] += inputs[rank][row]
        assert found[source].view(np.int64).reshape(-1, width).tolist() == total.tolist()


@given(WORLDS)
@FEW
def test_a_row_crosses_to_a_node_once_and_a_sum_from_it(
    asked: tuple[list[int], int, bool],
) -> None:
    world, _ = drawn((asked[0], asked[1], True))
    node = nodes_of(world.topology).node
    crossings = sum(
        len({int(node[rank]) for rank in ranks} - {int(node[source])})
        for source, tokens in enumerate(world.lists)
        for ranks in tokens
    )
    given_rows = [row.reshape(-1).view(np.uint8) for row in tokens_of(world, 1)]
    arrived = [np.zeros(4 * len(wanted), np.uint8) for wanted in world.arrivals]
    for plan, inputs in (
        (dispatch_plan(world, 4), given_rows),
        (combine_plan(world, 4, dtype="int32"), arrived),
    ):
        moved = simulation.moves(plan, inputs)
        far = sum(nbytes for one, other, nbytes in moved if node[one] != node[other])
        assert far == 4 * crossings


@given(WORLDS, st.sampled_from(["SUM", "MIN", "MAX", "PROD"]))
@FEW
def test_rows_of_unlike_bytes_and_types(asked: tuple[list[int], int, bool], op: str) -> None:
    world, chance = drawn(asked)
    kinds = [[chance.choice(["int8", "float64", "int32"]) for _ in one] for one in world.lists]
    items = [[chance.choice([0, 1, 5]) for _ in one] for one in world.lists]

    def nbytes(source: int, token: int) -> int:
        return items[source][token] * np.dtype(kinds[source][token]).itemsize

    def array(source: int, token: int, rank: int) -> NDArray[np.generic]:
        numbers = (np.arange(items[source][token]) + rank) % 3 + token % 2
        return numbers.astype(kinds[source][token])

    sizes = {rank: row_bytes(world, rank, kinds, nbytes) for rank in world.moves}
    blobs = [
        joined([array(source, token, 0) for token in range(len(tokens))])
        for source, tokens in enumerate(world.lists)
    ]
    found = ran(dispatch_plan(world, 1, row_bytes=sizes), blobs)
    for rank, wanted in enumerate(world.arrivals):
        assert found[rank].tobytes() == joined([array(*one, 0) for one in wanted]).tobytes()
    blobs = [
        joined([array(*one, rank) for one in wanted]) for rank, wanted in enumerate(world.arrivals)
    ]
    sums = ran(combine_plan(world, 1, row_bytes=sizes, op=op), blobs)
    ufunc = {"SUM": np.add, "MIN": np.minimum, "MAX": np.maximum, "PROD": np.multiply}[op]
    for source, tokens in enumerate(world.lists):
        expected = []
        for token, ranks in enumerate(tokens):
            terms = [array(source, token, rank) for rank in ranks]
            zero = np.zeros_like(array(source, token, 0))
            expected.append(ufunc.reduce(terms).astype(zero.dtype) if terms else zero)
        assert sums[source].tobytes() == joined(expected).tobytes()


def joined(arrays: list[NDArray[np.generic]]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(one.tobytes() for one in arrays), np.uint8)


def row_bytes(world, rank, kinds, nbytes) -> RowBytes:  # type: ignore[no-untyped-def]
    """Bytes of the rows of a rank, and of what comes to it."""
    moves, wanted = world.moves[rank], world.arrivals[rank]
    places = np.empty(len(wanted), np.int64)
    places[moves.order] = np.arange(len(wanted))
    there = [wanted[row] for row in places.tolist()]
    came, passed = there[: moves.n_came], there[moves.n_came :]
    own = [(rank, token) for token in range(moves.n_rows)]
    numbers = [np.array([nbytes(*one) for one in rows], np.int64) for rows in (own, came, passed)]
    types = [
        np.array([TYPES.index(kinds[source][token]) for source, token in rows], np.int64)
        for rows in (own, came)
    ]
    return RowBytes(*numbers, *types)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_added_in_float32(dtype: str) -> None:
    half = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    world = world_of(topology_of([0] * 6), [[tuple(range(6))], *[[] for _ in range(5)]])
    terms = [np.array([[x]], half) for x in (256, 1, 1, 1, 1, -256)]
    found = ran(combine_plan(world, 2, dtype=dtype), terms)
    assert found[0].view(half).tolist() == [4]


def test_relays_take_equal_loads() -> None:
    """Of two ranks, one wants each row and the other every second one."""
    rows = 1000
    lists: Lists = [[(1, 2) if row % 2 else (1,) for row in range(rows)], [], []]
    moves = world_of(topology_of([0, 1, 1]), lists).moves
    assert {rank: moves[rank].n_came for rank in (1, 2)} == {1: rows / 2, 2: rows / 2}


@pytest.mark.parametrize("relayed", [False, True])
def test_many_messages_of_one_rank(relayed: bool) -> None:
    """They are gathered in one step."""
    size = 22
    lists = [[tuple(range(size)), (rank, (rank + 3) % size)] for rank in range(size)]
    world = world_of(topology_of([0] + [1] * (size - 1)), lists, relayed=relayed)
    inputs = tokens_of(world, 2)
    found = ran(dispatch_plan(world, 8), inputs)
    for rows, wanted in zip(found, world.arrivals, strict=True):
        expected = [1000 * source + token for source, token in wanted]
        assert rows.view(np.int32)[::2].tolist() == expected
    sums = ran(combine_plan(world, 8, dtype="int32"), found)
    for source, total in enumerate(sums):
        assert (total.view(np.int32).reshape(2, 2) == inputs[source] * [[size], [2]]).all()


def test_flat_sends_each_row_to_each_rank() -> None:
    lists: Lists = [[(1, 2), (1, 2)], [], []]
    plan = dispatch_plan(world_of(topology_of([0, 1, 1]), lists, relayed=False), 4)
    moved = simulation.moves(plan, [np.zeros(8, np.uint8), *[np.zeros(0, np.uint8)] * 2])
    assert sorted(moved) == [(0, 1, 8), (0, 2, 8)]


def test_nodes_of_more_ranks_than_a_word_has_bits() -> None:
    size = 131
    world = world_of(topology_of([0] + [1] * (size - 1)), [[tuple(range(size))] * 2, *[[]] * 130])
    found = ran(dispatch_plan(world, 4), tokens_of(world, 1))
    assert [one.view(np.int32).tolist() for one in found] == [[0, 1]] * size
