"""Packing: copying what lies at regular places side by side, and back.

The way is chosen once for each block: compiled loops where the block has gaps, no
more than three loops and at least `LEAST` bytes, NumPy or the MPI library for the
rest.  The rule is that simple because the loops were never slower where it holds;
see docs/strided.md for what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.comms.arrays import Bytes
from closeranks.comms.strided import Block, entries, of_array
from closeranks.comms.typemap import typemap

#: Fewer bytes are not worth a look at their strides.
LEAST: Final = 16384
#: Loops that the compiled functions have.
_LOOPS: Final = 3
#: Runs that lie at least so far apart are fetched ahead; nearer ones the
#: processor finds itself.
_FAR: Final = 128
_AHEAD: Final = 64
#: Beyond this distance so many lines fall into too few sets of the cache.
_TOO_FAR: Final = 16384

Way = tuple[Callable[..., None], tuple[Any, ...], tuple[int, ...]]


def pack(array: NDArray[Any], first: int, count: int, out: Bytes) -> None:
    """Copy elements of an array side by side, in the order of its indices.

    Local.

    Parameters
    ----------
    array : ndarray
        Of any strides.
    first, count : int
        The first element, and how many.
    out : ndarray of uint8
        Takes their bytes, shares none with them.
    """
    part = entries(array, first, count)
    if part is None:
        out.view(array.dtype)[...] = array.flat[first : first + count]
    elif out.nbytes < LEAST or not gather(_address(part), of_array(part), out):
        np.copyto(out.view(array.dtype).reshape(part.shape), part)


def fill(data: Bytes, array: NDArray[Any], first: int, count: int) -> None:
    """Copy bytes into elements of an array, in the order of its indices.

    Local.

    Parameters
    ----------
    data : ndarray of uint8
        As many bytes as the elements have, none of them theirs.
    array : ndarray
        Of any strides; where elements share memory the last one stays.
    first, count : int
        The first element, and how many.
    """
    part = entries(array, first, count)
    if part is None:
        array.flat[first : first + count] = data.view(array.dtype)
    elif data.nbytes < LEAST or not scatter(data, of_array(part), _address(part)):
        part[...] = data.view(array.dtype).reshape(part.shape)


def worthwhile(datatype: MPI.Datatype, count: int, extent: int, nbytes: int) -> Block | None:
    """Describe entries of a datatype where that may be of use.

    Local.

    Parameters
    ----------
    datatype : MPI.Datatype
        What an entry is.
    count : int
        Number of entries.
    extent, nbytes : int
        Bytes from entry to entry, and of the data of all.

    Returns
    -------
    Block or None
        None for few bytes and for types that are not regular.
    """
    entry = typemap(datatype) if nbytes >= LEAST else None
    return None if entry is None else _repeated(entry, count, extent)


_repeated = lru_cache(maxsize=1024)(Block.repeated)


def gather(origin: int, block: Block, out: Bytes) -> bool:
    """Pack a block, if the compiled loops are the way to do it.

    Local; other threads run meanwhile.

    Parameters
    ----------
    origin : int
        Address that the block is relative to.
    block : Block
        What is copied.
    out : ndarray of uint8
        Takes ``block.nbytes`` bytes, shares none with the block.

    Returns
    -------
    bool
        Whether it was done.
    """
    way = _gathering(block)
    if way is None:
        return False
    function, head, loops = way
    function(*head, MPI.Get_address(out), origin + block.start, *loops)
    return True


def scatter(data: Bytes, block: Block, origin: int) -> bool:
    """Unpack a block, if the compiled loops are the way to do it.

    Local; other threads run meanwhile.

    Parameters
    ----------
    data : ndarray of uint8
        At least ``block.nbytes`` bytes side by side, none of them in the block.
    block : Block
        What is written.
    origin : int
        Address that the block is relative to.

    Returns
    -------
    bool
        Whether it was done; never where bytes of the block may coincide.
    """
    way = _scattering(block)
    if way is None:
        return False
    function, head, loops = way
    function(*head, origin + block.start, MPI.Get_address(data), *loops)
    return True


@lru_cache(maxsize=1024)
def _gathering(block: Block) -> Way | None:
    """Choose how to pack a block; None if not by compiled loops."""
    return _way(block, [(count, near, far) for count, near, far in _both(block)])


@lru_cache(maxsize=1024)
def _scattering(block: Block) -> Way | None:
    """Choose how to unpack a block; None if not by compiled loops."""
    if not block.disjoint:
        return None
    return _way(block, [(count, far, near) for count, near, far in _both(block)])


def _both(block: Block) -> list[tuple[int, int, int]]:
    """List count, packed stride and stride of each loop, outermost first."""
    nearby, found = block.run, []
    for count, stride in reversed(block.dimensions):
        found.append((count, nearby, stride))
        nearby *= count
    return found[::-1]


def _way(block: Block, loops: list[tuple[int, int, int]]) -> Way | None:
    """Choose the function for a block and lay out its arguments."""
    if block.nbytes < LEAST or not 1 <= len(loops) <= _LOOPS:
        return None
    from closeranks.comms import loops as compiled

    padded = [(1, 0, 0)] * (_LOOPS - len(loops)) + loops
    numbers = tuple(number for loop in padded for number in loop)
    if block.run > compiled.LONGEST:
        return compiled.long(), (block.run,), numbers
    words = block.run.bit_length() - 1
    head = ((0,) * words, block.run - (1 << words), _ahead(block))
    return compiled.short(words), head, numbers


def _ahead(block: Block) -> int:
    """Tell how many runs ahead memory is fetched; 0 for not at all."""
    count, stride = block.counts[-1], abs(block.strides[-1])
    if stride < _FAR:
        return 0
    ahead = _AHEAD if stride <= _TOO_FAR else _AHEAD // 4
    return ahead if count >= 4 * ahead else 0


def _address(array: NDArray[Any]) -> int:
    """Tell where the first element lies; quicker than asking ctypes."""
    return MPI.Get_address(array[(slice(0, 1),) * array.ndim])
