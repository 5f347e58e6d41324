"""Blocks of bytes, multiplied by a matrix over the field of 256 elements.

A `Product` is bound to a matrix once and called with blocks.  `Calls` serves
plain calls, whose blocks are passed anew each time: looking at arrays in
Python, one by one, takes many times as long as a product of small blocks.  So
one compiled function (`closeranks.checkpoint.erasure.product_entry`) reads
where the blocks lie, through their buffers, and multiplies them; the records
here tell it what it needs.

Importing this imports llvmlite; compiling takes ten milliseconds, once a
process and shape.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from closeranks.checkpoint.erasure.generator_matrix import Blocks, Bytes
from closeranks.checkpoint.erasure.product_layout import WORDS
from closeranks.checkpoint.erasure.product_llvm import NAME, Instructions, ProductShape, here, write
from closeranks.comms.discovery.sysfs import l3_share
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.object_code import emit, load_function
from closeranks.comms.jit.python_builtin import FAST, address_in_python, builtin
from closeranks.comms.numeric_argument import shown
from closeranks.errors import UsageError

_FUNCTION: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64
)
#: Results of at least so many bytes, blocks included, go past the caches where nobody says
#: how large those are.
_LARGE: Final = 32 << 20
#: Operands begin where a vector may.
_ALIGNED: Final = 64


class Product:
    """A matrix that blocks are multiplied by.

    Parameters
    ----------
    matrix : ndarray of uint8, shape (rows, count)
        Its factors.
    way : Instructions, optional
        How; the fastest of this processor if not given.
    """

    def __init__(self, matrix: Bytes, way: Instructions | None = None) -> None:
        self.matrix = np.array(matrix, np.uint8, ndmin=2)
        self.way = way or here()[0]
        most = self.way.registers
        starts = range(0, len(self.matrix), most)
        self._lots = [(at, _Lot(self.matrix[at : at + most], self.way)) for at in starts]

    def __call__(self, blocks: Blocks, results: Blocks, *, adds: bool = False) -> None:
        """Multiply once: `bind`, and call what it gives.  Local."""
        self.bind(blocks, results, adds=adds)()

    def bind(self, blocks: Blocks, results: Blocks, *, adds: bool = False) -> Callable[[], None]:
        """Prepare to multiply blocks, each row of the matrix into a result.  Local.

        Parameters
        ----------
        blocks : array of uint8, shape (count, nbytes), or arrays of shape (nbytes,)
            The data; each block lies in one piece.
        results : array of uint8, shape (rows, nbytes), or arrays of shape (nbytes,)
            The results.  One may be a block, but not overlap it otherwise.
        adds : bool
            Whether products are added to the results.

        Returns
        -------
        callable
            Multiplies the contents of the blocks at the call, without the GIL,
            and keeps them alive.  Any thread may call it, one at a time.

        Raises
        ------
        UsageError
            If a length or a kind does not fit.
        """
        rows, count = self.matrix.shape
        nbytes = check_blocks("product", "blocks", blocks, count)
        check_blocks("product", "results", results, rows, nbytes, writable=True)
        whole = nbytes - nbytes % self.way.width
        past = (rows + count) * nbytes >= cache_bytes()
        calls = self._calls(blocks, results, whole, adds, past)

        def multiply() -> None:
            for function, arguments in calls:
                function(*arguments)
            if whole < nbytes:
                self._multiply_end(blocks, results, whole, nbytes - whole, adds)

        return multiply

    def _calls(
        self, blocks: Blocks, results: Blocks, nbytes: int, adds: bool, past: bool
    ) -> list[tuple[Any, tuple[Any, ...]]]:
        """Give the functions for whole vectors, with their arguments."""
        sources, targets = _addresses(blocks), _addresses(results)
        count, length = ctypes.c_int64(len(sources)), ctypes.c_int64(nbytes)
        calls = []
        for at, lot in self._lots:
            own = targets[at : at + lot.rows]
            aligned = all(address % self.way.width == 0 for address in own)
            shape = ProductShape(lot.rows, lot.ones, adds, past and aligned)
            arguments = count, _table(sources), _table(own), lot.operands, length
            calls.append((_function(self.way, shape), arguments))
        return calls

    def lots(self) -> list[tuple[int, int, int]]:
        """Give address, operands and rows of the loops for whole vectors.

        Local.  Their results go into the caches; the product keeps the operands.
        """
        shapes = ((lot, ProductShape(lot.rows, lot.ones, False, False)) for _, lot in self._lots)
        return [(_address(self.way, shape), lot.operands.value or 0, lot.rows)
                for lot, shape in shapes]  # fmt: skip

    def finish(self, blocks: Blocks, results: Blocks) -> None:
        """Multiply the last bytes, which fill no vector.  Local."""
        nbytes = len(blocks[0])
        rest = nbytes % self.way.width
        self._multiply_end(blocks, results, nbytes - rest, rest, False)

    def _multiply_end(
        self, blocks: Blocks, results: Blocks, whole: int, nbytes: int, adds: bool
    ) -> None:
        """Multiply the last bytes, which fill no vector, in a vector of their own."""
        ends = np.zeros((len(blocks) + len(results), self.way.width), np.uint8)
        inputs, outputs = ends[: len(blocks)], ends[len(blocks) :]
        for end, row in zip(ends, (*blocks, *results), strict=True):
            end[:nbytes] = row[whole:]
        for function, arguments in self._calls(inputs, outputs, self.way.width, adds, past=False):
            function(*arguments)
        for end, row in zip(outputs, results, strict=True):
            row[whole:] = end[:nbytes]


class _Lot:
    """As many rows as fit the registers."""

    def __init__(self, matrix: Bytes, way: Instructions) -> None:
        self.rows = len(matrix)
        self.ones = bool((matrix[0] == 1).all())
        operands = way.operands(matrix[int(self.ones) :].T).ravel()
        self._memory = _aligned(operands.size)
        self._memory[:] = operands
        self.operands = ctypes.c_void_p(self._memory.ctypes.data)


@cache
def _address(way: Instructions, shape: ProductShape) -> int:
    """Compile a loop."""
    return load_function(emit(write(way, shape), NAME))


@cache
def _function(way: Instructions, shape: ProductShape) -> Any:
    """Give a loop as a function."""
    return _FUNCTION(_address(way, shape))


@cache
def cache_bytes() -> int:
    """Bytes of the last cache that one thread may count on.

    Local.  If blocks and results together have as many, the results go past
    it.
    """
    return l3_share(Path("/"), 1) or _LARGE


def _aligned(nbytes: int) -> Bytes:
    """Give memory that starts where a vector may."""
    memory = np.zeros(nbytes + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    return memory[start : start + nbytes]


def aligned_rows(rows: int, nbytes: int) -> Bytes:
    """Give memory for blocks, each of which starts where a vector may.

    Local.

    Parameters
    ----------
    rows : int
        Blocks.
    nbytes : int
        Of each.

    Returns
    -------
    ndarray of uint8, shape (rows, nbytes)
        Of any content; each row in one piece.
    """
    stride = -(-nbytes // _ALIGNED) * _ALIGNED
    memory = np.empty(rows * stride + _ALIGNED, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNED
    return memory[start : start + rows * stride].reshape(rows, stride)[:, :nbytes]


def check_blocks(
    operation: str,
    what: str,
    blocks: Blocks,
    count: int,
    nbytes: int | None = None,
    *,
    writable: bool = False,
) -> int:
    """Refuse blocks that do not fit.

    Local.

    Parameters
    ----------
    operation, what : str
        For the message: the operation, and the name of the blocks.
    blocks : array of uint8, shape (count, nbytes), or arrays of shape (nbytes,)
        The argument as passed.
    count : int
        How many there are to be.
    nbytes : int, optional
        Of each; that of the first if not given.
    writable : bool
        Whether they are written.

    Returns
    -------
    int
        Bytes of each.

    Raises
    ------
    UsageError
        If they are not so many equal runs of bytes, each in one piece.
    """
    if not hasattr(blocks, "__len__"):
        raise UsageError(operation, f"the {what} are {shown(blocks)}", "pass a table or a list")
    if len(blocks) != count:
        raise UsageError(operation, f"{len(blocks)} {what} of {count}", "pass all")
    for number, block in enumerate(blocks):  # of a table, the first speaks for all
        if not isinstance(block, np.ndarray):
            problem = f"number {number} of the {what} is {shown(block)}"
            raise UsageError(operation, problem, "pass arrays of uint8")
        if writable and not block.flags.writeable:
            problem = f"number {number} of the {what} is read-only"
            raise UsageError(operation, problem, "pass memory that may be written")
        if block.dtype != np.uint8 or block.ndim != 1 or not block.flags.c_contiguous:
            found = f"{block.dtype} of shape {block.shape}, strides {block.strides}"
            problem = f"number {number} of the {what} is {found}"
            raise UsageError(operation, problem, "pass uint8, each in one piece")
        nbytes = block.size if nbytes is None else nbytes
        if block.size != nbytes:
            problem = f"number {number} of the {what} has {block.size} bytes, others {nbytes}"
            raise UsageError(operation, problem, "pad to the longest")
        if isinstance(blocks, np.ndarray):
            break
    return nbytes or 0


def _addresses(blocks: Blocks) -> list[int]:
    """Give where blocks lie."""
    if isinstance(blocks, np.ndarray):
        first, stride = int(blocks.ctypes.data), blocks.strides[0]
        return [first + number * stride for number in range(len(blocks))]
    return [int(block.ctypes.data) for block in blocks]


def _table(addresses: list[int]) -> Any:
    """Write addresses for compiled code."""
    return (ctypes.c_int64 * len(addresses))(*addresses)


#: Functions of the interpreter, in the order of the offsets in `product_layout`.
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
        """Write the record that the function reads."""
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
