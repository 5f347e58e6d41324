"""The loops behind `closeranks.collectives.reduction.compiled_ops`, in Numba.

Each op has a pair of loops, and one pair more for half-precision sums and
products.  They are compiled for pointers to each type.  Importing this module
imports Numba, so no module imports it before a combiner is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from closeranks.collectives.reduction.half_precision import BFLOAT16, FLOAT16, narrow_as, widen

Loop = Callable[..., None]


def _sum(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = source[i] + target[i]


def _sum_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = a[i] + b[i]


def _prod(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = source[i] * target[i]


def _prod_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = a[i] * b[i]


def _min(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        a, b = source[i], target[i]
        target[i] = a if (a < b) | (a != a) else b


def _min_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        x, y = a[i], b[i]
        out[i] = x if (x < y) | (x != x) else y


def _max(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        a, b = source[i], target[i]
        target[i] = a if (a > b) | (a != a) else b


def _max_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        x, y = a[i], b[i]
        out[i] = x if (x > y) | (x != x) else y


def _band(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = source[i] & target[i]


def _band_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = a[i] & b[i]


def _bor(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = source[i] | target[i]


def _bor_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = a[i] | b[i]


def _bxor(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = source[i] ^ target[i]


def _bxor_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = a[i] ^ b[i]


def _land(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = (source[i] != 0) & (target[i] != 0)


def _land_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = (a[i] != 0) & (b[i] != 0)


def _lor(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = (source[i] != 0) | (target[i] != 0)


def _lor_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = (a[i] != 0) | (b[i] != 0)


def _lxor(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = (source[i] != 0) ^ (target[i] != 0)


def _lxor_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = (a[i] != 0) ^ (b[i] != 0)


LOOPS: dict[str, tuple[Loop, Loop]] = {
    "SUM": (_sum, _sum_three),
    "PROD": (_prod, _prod_three),
    "MIN": (_min, _min_three),
    "MAX": (_max, _max_three),
    "BAND": (_band, _band_three),
    "BOR": (_bor, _bor_three),
    "BXOR": (_bxor, _bxor_three),
    "LAND": (_land, _land_three),
    "LOR": (_lor, _lor_three),
    "LXOR": (_lxor, _lxor_three),
}


def _sum_wide(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = widen(source[i]) + target[i]


def _sum_wide_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = widen(a[i]) + widen(b[i])


def _prod_wide(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = widen(source[i]) * target[i]


def _prod_wide_three(a: Any, b: Any, out: Any, n: int) -> None:
    for i in range(n):
        out[i] = widen(a[i]) * widen(b[i])


def _narrow(source: Any, target: Any, n: int) -> None:
    for i in range(n):
        target[i] = narrow_as(source[i], target[i])


#: Of half-precision types: source to float32, two sources to float32.
WIDE_LOOPS: dict[str, tuple[Loop, Loop]] = {
    "SUM": (_sum_wide, _sum_wide_three),
    "PROD": (_prod_wide, _prod_wide_three),
}


def exported(name: str) -> tuple[Loop, Any]:
    """Give a loop by its name, and its signature.

    Parameters
    ----------
    name : str
        Op, type and part, as ``"SUM.float16.wide_pair"``; parts are those of
        `closeranks.collectives.reduction.compiled_ops.Combiner`.

    Returns
    -------
    loop : callable
        For Numba.
    signature : numba signature
        Pointers, and the count.
    """
    op, kind, part = name.split(".")
    element, wide = types.CPointer(_element(kind)), types.CPointer(types.float32)
    if part == "narrow":
        return _narrow, types.void(wide, element, types.int64)
    pair, three = (WIDE_LOOPS if part.startswith("wide") else LOOPS)[op]
    result = wide if part.startswith("wide") else element
    if part.endswith("pair"):
        return pair, types.void(element, result, types.int64)
    return three, types.void(element, element, result, types.int64)


def _element(name: str) -> Any:
    halves = {"float16": FLOAT16, "bfloat16": BFLOAT16}
    if name in halves:
        return halves[name]
    return types.uint8 if name == "bool" else numba.from_dtype(np.dtype(name))
