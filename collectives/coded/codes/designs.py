"""Symmetric designs: ``n`` blocks of ``k`` of ``n`` points; two share ``lam``.

Known are, with their complements:

* all points; one point; all but one;
* the squares modulo a prime ``n = 4 t + 3`` (Paley, 1933);
* the fourth powers modulo a prime ``n = 4 x**2 + 1``, ``x`` odd (Chowla,
  1944);
* pairs of residues modulo twin primes (Stanton and Sprott, 1958);
* hyperplanes of a projective space over a finite field (Singer, 1938);
* the zeros of bent functions of ``2 m`` bits, translated: ``n = 4**m`` (Menon,
  1962).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.coded.codes.finite_field import hyperplane_exponents, prime_power

Matrix = NDArray[np.float64]
#: How many designs an error names.
MOST_NEAR: Final = 3


def block_design(n: int, k: int) -> Matrix | None:
    """Give block, point -> 1 if the point is in the block, else 0; None if unknown."""
    if 2 * k > n and k < n:
        other = block_design(n, n - k)
        return None if other is None else 1 - other
    make = dict(_designs(n)).get(k)
    return None if make is None else make()


def designs_near(n: int, k: int) -> list[tuple[int, int]]:
    """Give (n, k) of some known designs like these, the nearest first."""
    found = [
        (points, size)
        for points in range(3, n + n // 2 + 8)
        for size in {one for half, _ in _designs(points) for one in (half, points - half)}
        if 1 < size < points - 1 or size == points - 1 == 2
    ]
    found.sort(key=lambda one: (abs(one[0] - n) + 2 * abs(one[1] - k), one))
    return found[:MOST_NEAR]


def _designs(n: int) -> Iterator[tuple[int, Callable[[], Matrix]]]:
    """Give the known k up to n / 2, and n, each with what makes the matrix."""
    yield n, lambda: np.ones((n, n))
    if n > 1:
        yield 1, lambda: np.eye(n)
    if n < 4:
        return
    prime = prime_power(n) == (n, 1)
    if prime and n % 4 == 3:
        yield (n - 1) // 2, lambda: _cyclic(n, {x * x % n for x in range(1, n)})
    root = round((n / 4) ** 0.5)
    if prime and root % 2 and 4 * root * root + 1 == n:
        yield (n - 1) // 4, lambda: _cyclic(n, {pow(x, 4, n) for x in range(1, n)})
    lower = round((n + 1) ** 0.5) - 1
    if lower * (lower + 2) == n and all(prime_power(p) == (p, 1) for p in (lower, lower + 2)):
        yield (n - 1) // 2, lambda: _cyclic(n, _twin_residues(lower))
    for q, dimension in _spaces(n):
        k = (q ** (dimension - 1) - 1) // (q - 1)
        yield k, partial(_hyperplanes, n, q, dimension)
    bits = n.bit_length() - 1
    if n == 1 << bits and bits % 2 == 0:
        yield n // 2 - (1 << (bits // 2 - 1)), lambda: _bent(bits // 2)


def _cyclic(n: int, block: set[int]) -> Matrix:
    """Give the translates of a block modulo n."""
    row = np.zeros(n)
    row[list(block)] = 1
    return np.stack([np.roll(row, i) for i in range(n)])


def _hyperplanes(n: int, q: int, dimension: int) -> Matrix:
    return _cyclic(n, set(hyperplane_exponents(q, dimension)))


def _twin_residues(p: int) -> set[int]:
    """Give x with both residues squares or both not, or 0 modulo ``p + 2``."""
    q = p + 2
    squares = [{x * x % m for x in range(1, m)} for m in (p, q)]
    same = {x for x in range(p * q) if x % p and x % q}
    same = {x for x in same if (x % p in squares[0]) == (x % q in squares[1])}
    return same | {x for x in range(p * q) if x % q == 0}


def _spaces(n: int) -> Iterator[tuple[int, int]]:
    """Give q and d for which the projective space of GF(q)**d has n points."""
    dimension = 3
    while 2**dimension - 1 <= n:
        q = 2
        while (points := (q**dimension - 1) // (q - 1)) <= n:
            if points == n and prime_power(q) is not None:
                yield q, dimension
            q += 1
        dimension += 1


def _bent(m: int) -> Matrix:
    """Give the translates of the ones of ``x . y`` for x, y of m bits."""
    numbers = np.arange(4**m)
    both = (numbers >> m) & (numbers & (2**m - 1))
    odd = np.zeros(4**m)
    while both.any():
        odd = (odd + both % 2) % 2
        both >>= 1
    return odd[numbers[:, None] ^ numbers[None, :]]
