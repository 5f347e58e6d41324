"""Pure kernels that APPLY steps name: arrays in, arrays and integers out.

A kernel is called as ``kernel(*reads, *writes)`` with one 1-D array a block,
of the plan's dtype where the buffer's unit is 0, of int64, int32 or uint8
where it is 8, 4 or 1.  It fills ``writes`` and returns nothing, an integer, or
a tuple of integers for the registers the step sets.  With early stop (``need``
below the number of steps waited for) a bool array ``arrived`` comes first:
which of them are done.  Kernels keep no state and touch nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
#: What stands in `KERNELS`.
Kernel: TypeAlias = Callable[..., "int | tuple[int, ...] | None"]
_K = TypeVar("_K", bound=Kernel)

KERNELS: dict[str, Kernel] = {}


def kernel(name: str) -> Callable[[_K], _K]:
    """Register the decorated function as the kernel ``name``.

    Parameters
    ----------
    name : str
        What `Apply.kernel` says; may be taken once.
    """

    def register(function: _K) -> _K:
        assert name not in KERNELS, f"two kernels are called {name}"
        KERNELS[name] = function
        return function

    return register


@kernel("sum_arrived")
def sum_arrived(arrived: NDArray[np.bool_], *blocks: Array) -> None:
    """Add the blocks that have arrived, in order, into the last array.

    Parameters
    ----------
    arrived : ndarray, shape (n,), dtype bool
        Which of the ``n`` blocks may be read.
    *blocks : ndarray
        ``n`` blocks of equal length, then the array that takes their sum.
    """
    *parts, total = blocks
    total[:] = 0
    for is_there, part in zip(arrived, parts, strict=True):
        if is_there:
            total += part


@kernel("offsets")
def offsets(counts: NDArray[np.int64], starts: NDArray[np.int64]) -> int:
    """Write the start of each of ``n`` packed runs; return their total.

    Parameters
    ----------
    counts : ndarray, shape (n,), dtype int64
        Items of each run.
    starts : ndarray, shape (n,), dtype int64
        Filled with the exclusive prefix sum of ``counts``.

    Returns
    -------
    int
        Items of all runs.
    """
    ends = np.cumsum(counts)
    starts[:] = ends - counts
    return int(ends[-1]) if len(ends) else 0


@kernel("numbers")
def numbers(values: NDArray[np.int64]) -> tuple[int, ...]:
    """Give every value of an array to a register.

    Parameters
    ----------
    values : ndarray, shape (n,), dtype int64
        One for each of the ``n`` registers that the step sets.
    """
    return tuple(values.tolist())
