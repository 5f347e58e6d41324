"""Which workers of the cyclic MDS code give the sum, decided without rounding.

Let ``g`` be the polynomial of the code, and let ``w`` have the weights as its
coefficients.  The weighted sum of the rows is ``w g`` modulo ``x**n - 1``, and
it shall be the polynomial of ones.  At ``z = exp(2 pi i e / n)`` that
polynomial is 0 but for ``e = 0``, and ``g(z)`` is 0 for all ``e`` but ``-h``
to ``h``, where ``2 h + 1 = n - s``.  So the condition is ``w(1) = 1`` (up to a
factor) and ``w(z) = 0`` for ``e = 1`` to ``h`` and ``-1`` to ``-h``:

* ``2 h + 1`` workers always do: the equations are of Vandermonde's kind.
* ``h`` workers never do.  The product of ``1 - cos(t - t_j)`` over the workers
  has degree ``h``, is 0 at each of them, and its mean is positive; but by the
  condition the weighted sum of its values at the workers is its mean.
* Between the two the ranks of two matrices of roots of unity decide.

The ranks are computed in integers modulo two primes ``p`` with ``n | p - 1``,
in which there are roots of unity of order ``n``, too.  A rank can only fall
there, and only if ``p`` divides the norm of a minor, so the larger of two
counts.  The answer depends on the set alone: no rounding error decides, and
all ranks agree.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def has_flat_weights(n: int, h: int, finished: frozenset[int]) -> bool:
    """Tell whether some weights have sum 1 and no frequency from 1 to ``h``.

    Parameters
    ----------
    n : int
        Points of the circle.
    h : int
        The highest frequency.
    finished : frozenset of int
        The points that may have a weight.

    Returns
    -------
    bool
        As the text of this module derives it.
    """
    if len(finished) <= h:
        return False
    if len(finished) > 2 * h:
        return True
    points = np.array(sorted(finished), np.int64)
    ranks = [_ranks(points, n, h, prime) for prime in _primes(n)]
    return max(with_ones for _, with_ones in ranks) > max(without for without, _ in ranks)


def _ranks(points: NDArray[np.int64], n: int, h: int, prime: int) -> tuple[int, int]:
    """Give the rank of point x frequency -> root of unity, without and with ones."""
    powers = np.array(_powers(n, prime), np.int64)
    frequencies = np.concatenate([np.arange(1, h + 1), n - np.arange(1, h + 1), [0]])
    table = powers[np.outer(points, frequencies) % n]
    rank = 0
    for column in range(2 * h):
        below = np.flatnonzero(table[rank:, column])
        if not below.size:
            continue
        pivot = rank + below[0]
        table[[rank, pivot]] = table[[pivot, rank]]
        row = table[rank] * pow(int(table[rank, column]), -1, prime) % prime
        table[rank + 1 :] -= np.outer(table[rank + 1 :, column], row) % prime
        table[rank + 1 :] %= prime
        rank += 1
        if rank == len(points):
            break
    return rank, rank + bool(table[rank:, -1].any())


@lru_cache(maxsize=64)
def _primes(n: int) -> tuple[int, int]:
    """Give the two largest primes below 2**31 that are 1 modulo ``n``."""
    found: list[int] = []
    candidate = (2**31 - 2) // n * n + 1
    divisors = np.arange(2, 2**16)
    while len(found) < 2:
        if (candidate % divisors).all():
            found.append(candidate)
        candidate -= n
    return found[0], found[1]


@lru_cache(maxsize=64)
def _powers(n: int, prime: int) -> tuple[int, ...]:
    """Give the powers of an element of order ``n`` modulo a prime."""
    factors = [q for q in range(2, n + 1) if n % q == 0]
    base = 2
    while True:
        root = pow(base, (prime - 1) // n, prime)
        if all(pow(root, n // q, prime) != 1 for q in factors):
            return tuple(pow(root, e, prime) for e in range(n))
        base += 1
