"""Hyperplanes over a finite field, as Singer's difference sets."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=4096)
def prime_power(q: int) -> tuple[int, int] | None:
    """Give the prime and the exponent of a prime power, else None."""
    if q < 2:
        return None
    p = next((p for p in range(2, int(q**0.5) + 1) if q % p == 0), q)
    exponent, left = 0, q
    while left % p == 0:
        exponent, left = exponent + 1, left // p
    return (p, exponent) if left == 1 else None


def hyperplane_exponents(q: int, dimension: int) -> list[int]:
    """Give the points of a hyperplane, as exponents of a generator of the space.

    Parameters
    ----------
    q : int
        A prime power.
    dimension : int
        Of the space over GF(q).

    Returns
    -------
    list of int
        Modulo the number of points, ``(q**dimension - 1) / (q - 1)``: every other
        number but 0 is equally often a difference of two (Singer, Transactions of
        the AMS 43, 1938).
    """
    found = prime_power(q)
    assert found is not None, q
    p, exponent = found
    degree = exponent * dimension
    powers = _powers_of_root(p, degree)
    points = len(powers) // (q - 1)
    place = p ** np.arange(degree)
    logarithm = np.zeros(p**degree, np.int64)
    logarithm[powers @ place] = np.arange(len(powers))
    zero = np.zeros((1, degree), np.int64)
    inside: list[int] = []
    span = zero  # of the powers of the root below i, over GF(q)
    for i in range(dimension - 1):
        inside += (logarithm[(span + powers[i]) % p @ place] % points).tolist()
        # The elements of GF(q) but 0 are the powers with exponents 0, points, 2 points, ...
        multiples = np.concatenate([zero, powers[i::points][: q - 1]])
        span = (span[:, None] + multiples).reshape(-1, degree) % p
    return inside


def _powers_of_root(p: int, degree: int) -> NDArray[np.int64]:
    """Give the powers of a generator of GF(p**degree), as coefficients modulo p."""
    order = p**degree - 1
    factors = [r for r in range(2, order + 1) if order % r == 0 and prime_power(r) == (r, 1)]
    one = np.eye(degree, dtype=np.int64)
    for tail in product(range(p), repeat=degree):
        # Times the root: its power ``degree`` is the combination of the lower by ``tail``.
        times = np.concatenate([one[1:], [tail]])
        if (_power(times, order, p) != one).any():
            continue
        if all((_power(times, order // r, p) != one).any() for r in factors):
            powers = one[:1]
            while len(powers) < order:
                powers = np.concatenate([powers, powers @ _power(times, len(powers), p) % p])
            return powers[:order]
    raise AssertionError(f"GF({p}**{degree}) has a generator")


def _power(matrix: NDArray[np.int64], exponent: int, p: int) -> NDArray[np.int64]:
    """Give a power of a matrix modulo p."""
    found = np.eye(len(matrix), dtype=np.int64)
    while exponent:
        if exponent & 1:
            found = found @ matrix % p
        matrix = matrix @ matrix % p
        exponent >>= 1
    return found
