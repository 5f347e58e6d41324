"""What codes are compared with: exact fractions, least squares, all placements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import chain, combinations

import numpy as np

from closeranks.collectives.coded import (
    CyclicMDS,
    CyclicRepetition,
    FractionalRepetition,
    GradientCode,
    Repetition,
    Tree,
)

Rows = list[list[Fraction]]

#: Codes that give the sum itself, all of them for up to six workers.
EXACT: list[GradientCode] = [
    *(Repetition(n, s) for n in range(1, 7) for s in range(n)),
    *(FractionalRepetition(n, s) for n in range(1, 7) for s in range(n) if n % (s + 1) == 0),
    *(CyclicRepetition(n, s, seed) for n in range(1, 7) for s in range(n) for seed in (0, 1)),
    *(CyclicMDS(n, s) for n in range(1, 7) for s in range(n) if (n - s) % 2),
    *(Tree(2, 2, s) for s in range(2)),
    *(Tree(b, 1, s) for b in range(1, 7) for s in range(b)),
]


def name(code: GradientCode) -> str:
    """Name a code in a list of tests."""
    return f"{type(code).__name__}-{code.n}-{getattr(code, 's', '')}-{getattr(code, 'seed', '')}"


def subsets(n: int) -> Iterator[tuple[int, ...]]:
    """Give all sets of n workers."""
    return chain.from_iterable(combinations(range(n), k) for k in range(n + 1))


def fractions_of(code: GradientCode) -> Rows:
    """Give the matrix without a rounding error."""
    if isinstance(code, CyclicRepetition):
        return cyclic_fractions(code.n, code.s, code.seed)
    return [[Fraction(int(x)) for x in row] for row in code.matrix]


def cyclic_fractions(n: int, s: int, seed: int) -> Rows:
    """Compute the random cyclic code anew, from the same draws, in fractions."""
    if s in (0, n - 1):
        return [[Fraction(int(s > 0 or i == j)) for j in range(n)] for i in range(n)]
    drawn = np.random.default_rng(seed).standard_normal((s, n - 1))
    checks = [[Fraction(float(x)) for x in row] for row in drawn]
    checks = [[*row, -sum(row, Fraction(0))] for row in checks]
    rows = []
    for i in range(n):
        others = [(i + step) % n for step in range(1, s + 1)]
        system = [[row[j] for j in others] + [-row[i]] for row in checks]
        solved = reduced(system)
        row = [Fraction(0)] * n
        row[i] = Fraction(1)
        for at, j in enumerate(others):
            row[j] = solved[at][s]
        rows.append(row)
    return rows


def reduced(rows: Rows) -> Rows:
    """Bring rows to their reduced form; zero rows are left out."""
    rows, done = [list(row) for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((r for r in range(done, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        first = rows[done][column]
        rows[done] = [x / first for x in rows[done]]
        for r in range(len(rows)):
            if r != done and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[done], strict=True)]
        done += 1
    return rows[:done]


def spans_ones(rows: Rows) -> bool:
    """Tell whether a combination of rows is all ones."""
    if not rows:
        return False
    ones = [[Fraction(1)] * len(rows[0])]
    return len(reduced(rows)) == len(reduced([*rows, *ones]))


def residual(code: GradientCode, finished: Sequence[int]) -> float:
    """Give how far the best weights are from all ones."""
    rows = code.matrix[list(finished)]
    best = np.linalg.lstsq(rows.T, np.ones(code.parts))[0]
    return float(np.abs(best @ rows - 1).max())


def can_be_placed(sizes: Sequence[int], n: int, decodes: Callable[[int], bool]) -> bool:
    """Tell whether workers fit on nodes so that any one node may be lost.

    ``decodes`` tells it of a set of workers, as bits.
    """
    every = (1 << n) - 1
    order = sorted(sizes, reverse=True)

    @cache
    def fits(node: int, left: int) -> bool:
        if node == len(order):
            return True
        free = [i for i in range(n) if left >> i & 1]
        for chosen in combinations(free, order[node]):
            bits = sum(1 << i for i in chosen)
            if decodes(every & ~bits) and fits(node + 1, left & ~bits):
                return True
        return False

    return fits(0, every)
