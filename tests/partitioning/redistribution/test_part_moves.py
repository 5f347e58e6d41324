"""Every pair of layouts: steps executed in one process equal slicing the whole array."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Broadcast, Conversion, Layout, Mesh, conversion
from closeranks.partitioning.redistribution import part_moves
from closeranks.partitioning.redistribution.part_moves import Move, Reduction, shares
from tests.partitioning.redistribution.interpreter import (
    executed,
    expected,
    given,
    kept,
    missing,
    value_of,
    word,
)
from tests.shares import SEED

MESHES = [(1,), (2,), (3,), (4,), (5,), (6,), (7,), (8,), (2, 2), (2, 3), (2, 4), (3, 2)]
SHAPES = [(7, 5), (0, 4), (1, 3), (11, 2), (8, 8)]
#: What stands for what: see `interpreter.word`.
HOWS = "01B+"


def rng_of(*numbers: int) -> np.random.Generator:
    """Random numbers of the day."""
    return np.random.default_rng([0 if SEED == "all" else int(SEED), *numbers])


def machine(size: int, rng: np.random.Generator) -> Topology | None:
    """Make up an irregular machine, or none."""
    if rng.random() < 0.3:
        return None
    node = rng.integers(0, max(2, size // 2 + 1), size)
    site = node % 2 if rng.random() < 0.5 else node * 0
    return Topology.from_groups(("site", "node", "rank"), [site, node, list(range(size))])


def meshes(sizes: tuple[int, ...], rng: np.random.Generator) -> tuple[Mesh, Mesh]:
    """Make two meshes of as many ranks: the same, another order, or another shape."""
    size = prod(sizes)

    def made(name: str, lengths: tuple[int, ...]) -> Mesh:
        order = rng.permutation(size) if rng.random() < 0.5 else None
        return Mesh({f"{name}{n}": length for n, length in enumerate(lengths)}, order=order)

    first = made("a", sizes)
    return first, first if rng.random() < 0.5 else made("b", sizes)


def check(made: Conversion, rng: np.random.Generator) -> None:
    """Execute a conversion and compare; count its bytes."""
    source, target = made.source, made.target
    parts, whole = given(source, rng)
    found = executed(made, parts)
    if not kept(source, target):
        for mine, wanted in zip(found, expected(target, whole), strict=True):
            assert (mine == wanted).all()
    assert (value_of(target, found) == whole).all()
    every = [made.part(rank) for rank in range(made.size)]
    assert sorted(m for part in every for m in part.sends) == sorted(
        m for part in every for m in part.receives
    )
    if "Partial" not in repr((source, target)):
        assert [made.received(rank) for rank in range(made.size)] == [
            8 * missing(made, rank) for rank in range(made.size)
        ]
        if made.topology is not None:
            check_entering(made)
    elif made.topology is not None and not kept(source, target):
        check_leaving(made)


def check_leaving(made: Conversion) -> None:
    """Terms of an element leave a group once, in one sum, if a rank outside gets the value."""
    assert made.topology is not None
    shape = made.source.global_shape
    reducer = np.full(shape, -1)
    for step in made.steps:
        if isinstance(step, Reduction) and not step.goes_on:
            reducer[tuple(slice(*one) for one in step.box)] = step.rank
    no_copies = Broadcast() not in made.source.placements
    for row in made.topology.groups:
        for group in set(row.tolist()):
            leaving = np.zeros(shape, int)
            for step in made.steps:
                if not isinstance(step, Move) or step.stage > 0:
                    continue
                if row[step.sender] == group != row[step.receiver]:
                    leaving[tuple(slice(*one) for one in step.box)] += 1
            held = np.zeros(shape, int)
            for rank in np.flatnonzero(row == group):
                held[made.source.box(int(rank))] = 1
            most = np.where((reducer >= 0) & (row[reducer] != group), held, 0)
            assert (leaving == most).all() if no_copies else (leaving <= most).all()


def check_entering(made: Conversion) -> None:
    """A group receives what its ranks want and none of them has, once."""
    assert made.topology is not None
    moves = [step for step in made.steps if isinstance(step, Move)]
    for row in made.topology.groups:
        for group in set(row.tolist()):
            members = np.flatnonzero(row == group).tolist()
            lacking = np.zeros(made.source.global_shape, bool)
            for rank in members:
                lacking[made.target.box(rank)] = True
            for rank in members:
                lacking[made.source.box(rank)] = False
            entering = [
                prod(stop - start for start, stop in move.box)
                for move in moves
                if row[move.receiver] == group != row[move.sender]
            ]
            assert sum(entering) == lacking.sum()


@pytest.mark.share(3)
@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_pair_of_layouts(sizes: tuple[int, ...], shape: tuple[int, int]) -> None:
    rng = rng_of(*sizes, *shape)
    for given_, taken in product(product(HOWS, repeat=len(sizes)), repeat=2):
        first, other = meshes(sizes, rng)
        source = Layout(shape, word("".join(given_)), mesh=first)
        target = Layout(shape, word("".join(taken)), mesh=other)
        check(conversion(source, target, topology=machine(first.size, rng)), rng)


@pytest.mark.share(2)
@pytest.mark.parametrize("number", range(40))
def test_meshes_of_other_shapes_cuts_and_more_axes(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_moves, "_LEAST_SHARE", 1)
    rng = rng_of(number)
    size = int(rng.choice([4, 6, 8, 12]))
    shape = tuple(rng.integers(0, 9, rng.integers(0, 4)).tolist())
    op = str(rng.choice(["+", "<", ">"]))
    for _ in range(12):
        source, target = (layout(size, shape, op, rng) for _ in range(2))
        check(conversion(source, target, topology=machine(size, rng)), rng)


def layout(size: int, shape: tuple[int, ...], op: str, rng: np.random.Generator) -> Layout:
    """Make up a layout on a mesh of up to three axes."""
    sizes: list[int] = []
    rest = size
    while rest > 1 and len(sizes) < 2:
        sizes.append(int(rng.choice([n for n in range(1, rest + 1) if rest % n == 0])))
        rest //= sizes[-1]
    sizes.append(rest)
    mesh = Mesh({f"a{n}": length for n, length in enumerate(sizes)}, order=rng.permutation(size))
    hows = "B" + op + "".join(map(str, range(len(shape)))) * 2
    made = word("".join(rng.choice(list(hows), len(sizes))))
    cuts: dict[int, Any] = {}
    for axis, length in enumerate(shape):
        parts = len(Layout(shape, made, mesh=mesh).bounds[axis]) - 1
        if parts > 1 and rng.random() < 0.5:
            cuts[axis] = [0, *np.sort(rng.integers(0, length + 1, parts - 1)), length]
    return Layout(shape, made, mesh=mesh, cuts=cuts)


def test_shares_are_those_of_array_split() -> None:
    box = ((2, 5), (10, 21))
    for count in range(1, 15):
        found = shares(box, count)
        wanted = [len(part) for part in np.array_split(np.arange(11), count)]
        assert [stop - start for _, (start, stop) in found] == wanted
        assert all(rows == (2, 5) for rows, _ in found)
        assert found[0][1][0] == 10
        assert found[-1][1][1] == 21
    assert shares((), 2)[0] == ()
