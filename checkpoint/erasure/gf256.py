"""The field of 256 elements, in which erasure codes reckon.

Bytes are polynomials over the bits, modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D),
as in ISA-L, Jerasure and redset; addition is exclusive or, and 2 generates all
but zero.  All functions are local and work element by element on uint8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.errors import CodeError

Bytes = NDArray[np.uint8]
#: Blocks of equal length: a table, or a list of what lies apart.
Blocks = Bytes | Sequence[Bytes]

#: The polynomial.
POLYNOMIAL: Final = 0x11D
#: Elements that are not zero.
ORDER: Final = 255


def _powers() -> Bytes:
    """Give the powers of 2, from 0 to 254."""
    powers, power = np.zeros(ORDER, np.uint8), 1
    for exponent in range(ORDER):
        powers[exponent] = power
        power <<= 1
        if power > ORDER:
            power ^= POLYNOMIAL
    return powers


def _products(powers: Bytes) -> Bytes:
    """Tabulate all products, from the logarithms."""
    logarithms = np.argsort(powers)  # of 1, 2, 3, ...
    products = np.zeros((256, 256), np.uint8)
    products[1:, 1:] = powers[(logarithms[:, None] + logarithms) % ORDER]
    return products


#: ``EXP[n]`` is 2 to the n.
EXP: Final = _powers()
#: ``PRODUCTS[a, b]`` is a times b.
PRODUCTS: Final = _products(EXP)
#: ``INVERSES[a]`` is 1 / a; that of 0 means nothing.
INVERSES: Final = np.argmax(PRODUCTS == 1, axis=1).astype(np.uint8)


def matmul(left: Bytes, right: Bytes) -> Bytes:
    """Multiply matrices.

    Parameters
    ----------
    left : ndarray of uint8, shape (rows, inner)
        Any.
    right : ndarray of uint8, shape (inner, columns)
        Any.

    Returns
    -------
    ndarray of uint8, shape (rows, columns)
        The product.
    """
    terms = PRODUCTS[left[:, :, None], right[None, :, :]]
    product: Bytes = np.bitwise_xor.reduce(terms, axis=1)
    return product


def invert(matrix: Bytes) -> Bytes:
    """Invert a matrix, by Gauss and Jordan.

    Parameters
    ----------
    matrix : ndarray of uint8, shape (n, n)
        Any.

    Returns
    -------
    ndarray of uint8, shape (n, n)
        Its inverse.

    Raises
    ------
    CodeError
        If it has none.
    """
    n = len(matrix)
    rows = np.concatenate([matrix, np.eye(n, dtype=np.uint8)], axis=1)
    for column in range(n):
        found = np.flatnonzero(rows[column:, column])
        if not found.size:
            raise CodeError("invert", f"a matrix of {n} rows has rank {column} or less")
        pivot = column + int(found[0])
        rows[[column, pivot]] = rows[[pivot, column]]
        rows[column] = PRODUCTS[INVERSES[rows[column, column]], rows[column]]
        factors = rows[:, column].copy()
        factors[column] = 0
        rows ^= PRODUCTS[factors[:, None], rows[column]]
    return rows[:, n:].copy()
