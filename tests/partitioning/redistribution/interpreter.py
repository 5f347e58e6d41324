"""Executes the steps of a conversion in one process, by slicing alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from closeranks.partitioning import Broadcast, Conversion, Layout, Partial, Split
from closeranks.partitioning.redistribution.part_moves import Copy, Fill, Move, Reduction

OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum}
#: The neutral element of an int64.
NEUTRAL = {"sum": 0, "min": 2**63 - 1, "max": -(2**63)}
Array = NDArray[Any]
Box = tuple[tuple[int, int], ...]


def given(
    layout: Layout, rng: np.random.Generator, least: int = -1000, below: int = 1000
) -> tuple[list[Array], Array]:
    """Make what each rank holds, and the values of the whole array.

    Terms are the same wherever the layout says that they are copies.
    """
    ops = [how.op for how in layout.placements if isinstance(how, Partial)]
    terms: dict[tuple[int, ...], Array] = {}
    parts = []
    for rank in range(layout.mesh.size):
        at = layout.mesh.coordinates(rank)
        key = tuple(
            c for c, how in zip(at, layout.placements, strict=True) if isinstance(how, Partial)
        )
        if key not in terms:
            terms[key] = rng.integers(least, below, layout.global_shape)
        parts.append(np.array(terms[key][layout.box(rank)]))
    whole = np.asarray(terms[min(terms)])
    for key in sorted(terms)[1:]:
        whole = np.asarray(OPS[ops[0]](whole, terms[key]))
    return parts, whole


def index(box: Box, layout: Layout, rank: int) -> tuple[slice, ...]:
    """Where a box lies in a rank's local array."""
    starts = layout.offset(rank)
    return tuple(slice(a - at, b - at) for (a, b), at in zip(box, starts, strict=True))


def executed(made: Conversion, parts: list[Array]) -> list[Array]:
    """Execute all steps; a step that reads what has not arrived gives wrong values."""
    out = [np.full(made.target.local_shape(r), -77777) for r in range(made.size)]
    terms: dict[tuple[int, int, int, Box], Array] = {}
    sums: dict[tuple[int, Box], Array] = {}

    def read(rank: int, box: Box, *, has_arrived: bool = False) -> Array:
        array, layout = (out, made.target) if has_arrived else (parts, made.source)
        return array[rank][index(box, layout, rank)].copy()

    for step in made.steps:
        if isinstance(step, Fill):
            out[step.rank][...] = NEUTRAL[step.op]
        elif isinstance(step, Copy):
            out[step.rank][index(step.box, made.target, step.rank)] = read(*step)
        elif isinstance(step, Move):
            if step.stage <= 0:
                is_sum = step.has_arrived
                data = sums[step.sender, step.box] if is_sum else read(step.sender, step.box)
                terms[step.stage, step.receiver, step.term, step.box] = data
            else:
                data = read(step.sender, step.box, has_arrived=step.has_arrived)
                out[step.receiver][index(step.box, made.target, step.receiver)] = data
        elif isinstance(step, Reduction):
            whole: Any = None
            for term, sender in enumerate(step.senders):
                if sender != step.rank:
                    one = terms.pop((step.stage, step.rank, term, step.box))
                elif step.has_reduced:
                    one = sums[step.rank, step.box]
                else:
                    one = read(sender, step.box)
                whole = one if whole is None else OPS[step.op](whole, one)
            sums[step.rank, step.box] = whole
            if not step.goes_on:
                out[step.rank][index(step.box, made.target, step.rank)] = whole
    assert not terms  # all that was sent has been added
    return out


def expected(layout: Layout, whole: Array) -> list[Array]:
    """What each rank must hold afterwards, if no partial axis is kept."""
    found = []
    for rank in range(layout.mesh.size):
        at = layout.mesh.coordinates(rank)
        first = all(
            c == 0 or not isinstance(how, Partial)
            for c, how in zip(at, layout.placements, strict=True)
        )
        mine = np.array(whole[layout.box(rank)])
        if not first:
            op = next(how.op for how in layout.placements if isinstance(how, Partial))
            mine = np.full_like(mine, NEUTRAL[op])
        found.append(mine)
    return found


def kept(source: Layout, target: Layout) -> list[int]:
    """Mesh axes that are partial in both layouts of one mesh."""
    if not np.array_equal(source.mesh.ranks, target.mesh.ranks):
        return []
    pairs = zip(source.placements, target.placements, strict=True)
    return [
        n for n, (a, b) in enumerate(pairs) if isinstance(a, Partial) and isinstance(b, Partial)
    ]


def value_of(layout: Layout, parts: list[Array]) -> Array:
    """Put together the whole array that ranks hold."""
    ops = [how.op for how in layout.placements if isinstance(how, Partial)]
    terms: dict[tuple[int, ...], Array] = {}
    for rank in range(layout.mesh.size):
        at = layout.mesh.coordinates(rank)
        key = tuple(
            c for c, how in zip(at, layout.placements, strict=True) if isinstance(how, Partial)
        )
        whole = terms.setdefault(key, np.full(layout.global_shape, -77777))
        whole[layout.box(rank)] = parts[rank]
    found = np.asarray(terms[min(terms)])
    for key in sorted(terms)[1:]:
        found = np.asarray(OPS[ops[0]](found, terms[key]))
    return found


def missing(made: Conversion, rank: int) -> int:
    """Number of elements of a rank's target box outside its source box."""
    has = np.zeros(made.source.global_shape, bool)
    has[made.target.box(rank)] = True
    has[made.source.box(rank)] = False
    return int(has.sum())


def word(text: str) -> list[Any]:
    """Read placements: digits split, B broadcasts, + < > are partial."""
    kinds: dict[str, Any] = {
        "B": Broadcast(), "+": Partial("sum"), "<": Partial("min"), ">": Partial("max"),
    }  # fmt: skip
    return [kinds[one] if one in kinds else Split(int(one)) for one in text]
