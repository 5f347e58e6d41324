"""Ghost cells: every rank's padded array is a box of the padded global array."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from closeranks.partitioning import Broadcast, Layout, Mesh, Split
from closeranks.partitioning.halo.ghosts import Ghosts, Sides
from closeranks.partitioning.layout.box import Bounds, intersection, slices

OUTSIDE = -1
UNEQUAL = ((0, 1), (2, 0), (1, 3), (3, 2))
WIDTHS = (*((width, width) for width in range(4)), *UNEQUAL)


def local_arrays(ghosts: Ghosts, whole: np.ndarray) -> list[np.ndarray]:
    """Give every rank's padded array, its ghosts outside of everything."""
    made = []
    for rank in range(ghosts.layout.mesh.size):
        made.append(np.full(ghosts.shape(rank), OUTSIDE))
        made[-1][slices(ghosts.interior(rank))] = whole[ghosts.layout.box(rank)]
    return made


def exchange(ghosts: Ghosts, arrays: Sequence[np.ndarray]) -> None:
    """Do as the ranks would: what one sends is what the other one expects, in order."""
    size = len(arrays)
    sent = {rank: ghosts.sent(rank) for rank in range(size)}
    for rank, array in enumerate(arrays):
        received = ghosts.received(rank)
        for owner in range(size):
            there = [(one.ghost, one.source) for one in sent[owner] if one.peer == rank]
            assert there == [(one.ghost, one.source) for one in received if one.peer == owner]
        for one in received:
            target = array[slices(one.ghost)]
            assert (target == OUTSIDE).all()  # nothing comes twice
            assert intersection(one.source, ghosts.interior(one.peer)) == one.source
            array[slices(one.ghost)] = arrays[one.peer][slices(one.source)]


def expected(ghosts: Ghosts, whole: np.ndarray, rank: int) -> np.ndarray:
    """Slice what `np.pad` makes of the global array."""
    padded = whole
    for axis, (sides, ring) in enumerate(zip(ghosts.widths, ghosts.periodic, strict=True)):
        pads = [(0, 0)] * whole.ndim
        pads[axis] = sides
        if ring and whole.shape[axis]:
            padded = np.pad(padded, pads, mode="wrap")
        else:
            padded = np.pad(padded, pads, constant_values=OUTSIDE)
    bounds = ghosts.layout.bounds_of(rank)
    box = tuple(
        (start, stop + low + high)
        for (start, stop), (low, high) in zip(bounds, ghosts.widths, strict=True)
    )
    found = padded[slices(box)].copy()
    if not ghosts.corners:
        found[corner_cells(found.shape, ghosts.interior(rank))] = OUTSIDE
    return found


def corner_cells(shape: tuple[int, ...], interior: Bounds) -> np.ndarray:
    """Mark cells that are ghosts on two or more axes."""
    index = np.indices(shape)
    outside = [
        (at < start) | (at >= stop) for at, (start, stop) in zip(index, interior, strict=True)
    ]
    return np.asarray(sum(one.astype(int) for one in outside) > 1)


def check(
    layout: Layout, widths: Sequence[Sides], periodic: Sequence[bool], *, corners: bool
) -> None:
    """Compare an exchange with padding; on a ring widths are cut to its length."""
    fitting = [
        (min(sides[0], length), min(sides[1], length)) if ring else sides
        for sides, ring, length in zip(widths, periodic, layout.global_shape, strict=True)
    ]
    ghosts = Ghosts(layout, fitting, periodic, corners=corners)
    whole = np.arange(np.prod(layout.global_shape, dtype=int)).reshape(layout.global_shape)
    arrays = local_arrays(ghosts, whole)
    exchange(ghosts, arrays)
    for rank, array in enumerate(arrays):
        assert array.tolist() == expected(ghosts, whole, rank).tolist(), (layout, rank)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 7])
@pytest.mark.parametrize("sides", WIDTHS)
@pytest.mark.parametrize("ring", [False, True])
def test_one_axis(length: int, sides: Sides, ring: bool) -> None:
    for size in range(1, 9):
        layout = Layout((length,), [Split(0)], mesh=Mesh({"d0": size}))
        check(layout, [sides], [ring], corners=True)


@pytest.mark.share(6)
@pytest.mark.parametrize("sides", list(product(WIDTHS, WIDTHS[:4])))
def test_two_axes(sides: tuple[Sides, Sides]) -> None:
    order = np.random.default_rng(7).permutation(6)
    for shape, grid in product([(5, 7), (3, 1), (0, 4)], [(2, 3), (1, 4), (6, 1)]):
        mesh = Mesh(dict(zip("ab", grid, strict=True)))
        if mesh.size == order.size:
            mesh = Mesh(dict(mesh.axes), order=order.reshape(grid))
        layout = Layout(shape, [Split(0), Split(1)], mesh=mesh)
        for periodic in product([False, True], repeat=2):
            for corners in (False, True):
                check(layout, sides, periodic, corners=corners)


@pytest.mark.share(8)
@pytest.mark.parametrize("seed", range(64))
def test_three_axes_drawn_by_lot(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(4):
        grid = tuple(int(n) for n in draw.integers(1, 4, 3))
        mesh = Mesh(dict(zip("abc", grid, strict=True)),
                    order=draw.permutation(int(np.prod(grid))).reshape(grid))  # fmt: skip
        shape = tuple(int(n) for n in draw.integers(0, 6, 3))
        axes = draw.permutation(3)
        cuts = {
            int(axis): sorted(
                [0, *draw.integers(0, shape[axis] + 1, parts - 1).tolist(), shape[axis]]
            )
            for axis, parts in zip(axes, grid, strict=True)
            if draw.random() < 0.5 and parts > 1
        }
        layout = Layout(shape, [Split(int(axis)) for axis in axes], mesh=mesh, cuts=cuts)
        sides = [(int(low), int(high)) for low, high in draw.integers(0, 4, (3, 2))]
        periodic = [bool(ring) for ring in draw.integers(0, 2, 3)]
        check(layout, sides, periodic, corners=bool(draw.integers(0, 2)))


@pytest.mark.parametrize("placements", [
    [Split(0), Split(0)], [Split(1), Split(1)], [Split(1), Broadcast()], [Broadcast(), Split(0)],
    [Broadcast(), Broadcast()],
])  # fmt: skip
def test_axes_split_twice_and_axes_that_copy(placements: list[Split | Broadcast]) -> None:
    mesh = Mesh({"a": 2, "b": 3}, order="a-b")
    layout = Layout((7, 4), placements, mesh=mesh)
    for ring in (False, True):
        check(layout, [(2, 1), (1, 1)], [ring, ring], corners=True)
        ghosts = Ghosts(layout, [(2, 1), (1, 1)], [ring, ring], corners=True)
        for axis, how in enumerate(placements):
            if isinstance(how, Broadcast):  # whoever holds the same copy sends
                for rank in range(6):
                    here = mesh.coordinates(rank)[axis]
                    peers = {one.peer for one in ghosts.received(rank)}
                    assert {mesh.coordinates(peer)[axis] for peer in peers} <= {here}


def test_thousands_of_ranks_take_milliseconds() -> None:
    mesh = Mesh({"a": 16, "b": 32, "c": 32})
    layout = Layout((256, 512, 512), [Split(0), Split(1), Split(2)], mesh=mesh)
    ghosts = Ghosts(layout, [(1, 1)] * 3, [True] * 3, corners=True)
    line = Ghosts(
        Layout((100_000,), [Split(0)], mesh=Mesh({"a": 16384})), [(3, 2)], [True], corners=True
    )
    began = time.process_time()
    assert len(ghosts.received(777)) == len(ghosts.sent(777)) == 26
    assert len(line.received(16383)) == len(line.sent(0)) == 2
    assert time.process_time() - began < 0.05
