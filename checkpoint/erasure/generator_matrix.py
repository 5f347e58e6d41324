"""The field of 256 elements, and the parity matrix of an erasure code.

Bytes are polynomials over the bits, modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11D),
as in ISA-L, Jerasure and redset.  Addition is exclusive or, and 2 generates
all elements but zero.  All functions are local and work element by element on
uint8.

A parity matrix says which sums of the data a code keeps.  If and only if every
square part of the matrix can be inverted, any lost blocks can be rebuilt from
any others that are as many as the data (MDS, see F. J. MacWilliams and N. J.
A. Sloane, The Theory of Error-Correcting Codes, ch. 11, theorem 8).  The first
row is all ones, so the first parity is the exclusive or of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.numeric_argument import shown, whole
from closeranks.errors import CodeError, UsageError

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


#: The names, the cheapest first, and how many parities each has at most.
MOST_PARITY: Final = {"xor": 1, "power": 3, "cauchy": ORDER}


def parity_matrix(data: int, parity: int, name: str = "auto") -> Bytes:
    """Make a parity matrix.

    Parameters
    ----------
    data, parity : int
        Blocks of either kind, at least one each, at most 255 together.
    name : str
        ``xor``: ones; ``power``: row j, column i is 2^(ij), MDS up to three rows;
        ``cauchy``: 1 / (x_j + y_i), scaled until the first row and column are 1;
        ``auto``: the first of these that has as many parities.

    Returns
    -------
    ndarray of uint8, shape (parity, data)
        Every square part can be inverted.

    Raises
    ------
    UsageError
        If there is no such matrix.
    """
    data, parity = (whole("code", *pair, 0) for pair in (("data", data), ("parity", parity)))
    if data < 1 or parity < 1 or data + parity > ORDER:
        problem = f"{data} data and {parity} parity blocks"
        raise UsageError("code", problem, f"take at least one of each, at most {ORDER} together")
    if isinstance(name, str) and name == "auto":
        name = next(name for name, most in MOST_PARITY.items() if parity <= most)
    if not isinstance(name, str) or name not in MOST_PARITY:
        known = ", ".join(MOST_PARITY)
        raise UsageError("code", f"unknown matrix {shown(name)}", f"choose {known}")
    if parity > MOST_PARITY[name]:
        problem = f"{parity} parity blocks, the matrix {name!r} has at most {MOST_PARITY[name]}"
        raise UsageError("code", problem, "take cauchy")
    rows, columns = np.arange(parity)[:, None], np.arange(data)
    if name == "cauchy":
        return _cauchy(rows, columns)
    powers: Bytes = EXP[rows * columns % ORDER]
    return powers


def _cauchy(rows: np.ndarray, columns: np.ndarray) -> Bytes:
    """Make a Cauchy matrix; scaling rows and columns leaves its parts invertible."""
    matrix = INVERSES[(rows + len(columns)) ^ columns]
    matrix = PRODUCTS[matrix, INVERSES[matrix[0]]]
    scaled: Bytes = PRODUCTS[matrix, INVERSES[matrix[:, :1]]]
    return scaled


class Recipe(NamedTuple):
    """How lost blocks are rebuilt.

    Attributes
    ----------
    lost : tuple of int
        The blocks.
    kept : tuple of int
        The others.
    read : tuple of int
        The part of ``kept`` that is read: as many blocks as the data.
    matrix : ndarray of uint8, shape (len(lost), len(read))
        Gives ``lost`` as sums of ``read``.
    """

    lost: tuple[int, ...]
    kept: tuple[int, ...]
    read: tuple[int, ...]
    matrix: Bytes
