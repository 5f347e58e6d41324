"""A product of blocks that are passed anew each time, at the least cost.

What it takes to look at arrays in Python, one by one, is many times what a
product of small blocks takes.  So one compiled function reads where they lie,
through their buffers, and multiplies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from closeranks.checkpoint.erasure.gf256 import Blocks
from closeranks.checkpoint.erasure.matrix_product import Product, cache_bytes
from closeranks.checkpoint.erasure.product_layout import WORDS
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import FAST, address_in_python, builtin

#: Functions of the interpreter, in the order of `closeranks.checkpoint.erasure.product_layout`.
_FUNCTIONS: Final = (
    "PyObject_GetBuffer", "PyBuffer_Release", "PyErr_Clear", "PyEval_SaveThread",
    "PyEval_RestoreThread", "PyLong_FromSsize_t",
)  # fmt: skip
#: Calls until it pays to have the function, which somebody may have to compile first.
_FEW: Final = 2


class Calls:
    """Multiplies blocks among those that are passed.

    Parameters
    ----------
    product : Product
        By what.
    total : int
        Blocks that are passed.
    read, written : sequence of int
        Which of them are multiplied, and where to.
    first : int
        Number of the first one that must be writable.
    """

    def __init__(
        self, product: Product, total: int, read: Sequence[int], written: Sequence[int], first: int
    ) -> None:
        self.product = product
        self._known = (total, tuple(read), tuple(written), first)
        self._few, self._is_off = _FEW, False
        self._free: list[Callable[..., int]] = []

    def __call__(self, *given: Any) -> int:
        """Multiply.

        Local; on any thread, several at once.

        Parameters
        ----------
        *given : ndarray of uint8
            Tables of blocks, or blocks, in their order.

        Returns
        -------
        int
            1; 2 if the last bytes of blocks are left; 0 if nothing is done, for they
            do not fit, or are so large that others do as well.
        """
        try:
            entry = self._free.pop()
        except IndexError:
            found = self._made()
            if found is None:
                return 0
            entry = found
        try:
            return entry(*given)
        finally:
            self._free.append(entry)

    def finish(self, blocks: Blocks) -> None:
        """Multiply the last bytes of blocks that were passed in one lot.  Local."""
        _, read, written, _ = self._known
        self.product.finish([blocks[n] for n in read], [blocks[n] for n in written])

    def _made(self) -> Callable[..., int] | None:
        """Make a function for one thread at a time; None where there is none."""
        self._few -= 1
        if self._few >= 0 or self._is_off:
            return None
        try:
            code = code_cache.address_of("closeranks.checkpoint.erasure.product_entry", "multiply")
        except ImportError:  # Numba is switched off
            self._is_off = True
            return None
        return builtin("multiply", "Multiply blocks.", code, FAST, self._record())

    def _record(self) -> Any:
        """Write down what the function needs to know."""
        (total, read, written, first), lots = self._known, self.product.lots()
        order = (*read, *written)
        sizes = (total, len(order), len(order), 3 * (len(lots) + 1))
        record = np.zeros(WORDS + sum(sizes), np.int64)
        start = record.ctypes.data
        places, ordered, sources, loops = (WORDS + sum(sizes[:at]) for at in range(len(sizes)))
        targets = sources + len(read)
        tables = [start + 8 * at for at in (places, ordered, sources, targets, loops)]
        known = [total, len(read), len(written), first, self.product.way.width, cache_bytes()]
        words = [*map(address_in_python, _FUNCTIONS), *known, *tables]
        record[: len(words)] = words
        record[ordered : ordered + len(order)] = order
        record[loops : loops + 3 * len(lots)] = np.ravel(lots)
        return record
