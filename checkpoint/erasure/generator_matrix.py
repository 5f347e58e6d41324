"""Which sums of the data an erasure code keeps: its parity matrix.

Any lost blocks can be rebuilt from any others that are as many as the data, if
and only if every square part of the matrix can be inverted (MDS, see F. J.
MacWilliams and N. J. A. Sloane, The Theory of Error-Correcting Codes, ch. 11,
theorem 8).  The first row is all ones everywhere, so the first parity is the
exclusive or of the data.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from closeranks.checkpoint.erasure.gf256 import EXP, INVERSES, ORDER, PRODUCTS, Bytes
from closeranks.comms.numeric_argument import shown, whole
from closeranks.errors import UsageError

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
