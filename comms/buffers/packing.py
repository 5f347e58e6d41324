"""Packing: strided data copied side by side, and back.

The way is chosen once for each block: compiled loops for at least `LEAST`
bytes in no more than three loops, NumPy or the MPI library for the rest.  The
rule is this simple because the loops were never slower where it holds;
docs/strided.md has the measurements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from closeranks.comms.buffers.array_memory import Bytes
from closeranks.comms.buffers.strided_block import Shape, StridedBlock, entries, of_layout
from closeranks.comms.buffers.typemap import typemap
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import copier_at

if TYPE_CHECKING:
    from mpi4py import MPI


#: Fewer bytes are not worth a look at their strides.
LEAST: Final = 16384
#: Loops that the compiled functions have.
_LOOPS: Final = 3
#: Shortest distance of runs that are prefetched, and their greatest length; the processor
#: prefetches others itself.
_FAR: Final = 128
_AHEAD: Final = 64
#: Beyond this distance so many lines fall into too few sets of the cache.
_TOO_FAR: Final = 16384

#: Longest run that is copied by loads and stores; longer ones by memcpy.
_LONGEST: Final = 64
#: A run of so many bytes is copied in halves, which no line splits where arrays start at
#: multiples of 16 bytes: whole it took up to a third longer.
_HALVED: Final = 32
#: Runs a multiple of this apart meet in one set of the first cache: memcpy then does
#: better than loops that have many runs on their way.
_PAGE: Final = 4096
#: So far apart, the slower loops of NumPy and of the library are faster still: reads meet
#: in few sets of the second cache, and writes wait for their lines.
_READ_APART: Final = 4 * _PAGE
_WRITTEN_APART: Final = _PAGE // 2
#: Fewer runs do not fill a set.
_MANY: Final = 16
#: Longest word that is gathered in fours, bytes.
_WORD: Final = 8

#: Shortest run that is copied past the caches.
_STREAMED: Final = 256

#: Copies from an array to another, see `closeranks.comms.jit.python_builtin.copier_at`.
Copier = Callable[..., object]


class Packer(NamedTuple):
    """How elements of one layout are copied side by side, and back: chosen once.

    Local; other threads run while it copies.  The two arrays share no memory.

    Attributes
    ----------
    gather : callable
        ``gather(out, array)``: to an array of uint8 from one of that layout.
    scatter : callable
        ``scatter(array, data)``: back; if elements share memory the last one
        stays.
    """

    gather: Copier
    scatter: Copier


@lru_cache(maxsize=1024)
def packer(shape: Shape, strides: Shape, itemsize: int) -> Packer:
    """Choose how arrays of a layout are packed and filled.

    Parameters
    ----------
    shape, strides : tuple of int
        Of the array; strides in bytes.
    itemsize : int
        Bytes of an element.

    Returns
    -------
    Packer
        For all arrays of that layout.
    """
    block = of_layout(shape, strides, itemsize)
    return Packer(_gathering(block) or _pack, _scattering(block) or _fill)


def _pack(out: Bytes, array: NDArray[Any]) -> None:
    np.copyto(out.view(array.dtype).reshape(array.shape), array)


def _fill(array: NDArray[Any], data: Bytes) -> None:
    array[...] = data.view(array.dtype).reshape(array.shape)


def pack(array: NDArray[Any], first: int, count: int, out: Bytes) -> None:
    """Copy elements of an array side by side, in the order of its indices.

    Local; other threads run meanwhile.

    Parameters
    ----------
    array : ndarray
        Of any strides.
    first, count : int
        The first element, and how many.
    out : ndarray of uint8
        Takes their bytes; shares no memory with them.
    """
    part = array if count == array.size else entries(array, first, count)
    if part is None:
        out.view(array.dtype)[...] = array.flat[first : first + count]
    else:
        packer(part.shape, part.strides, part.itemsize).gather(out, part)


def fill(data: Bytes, array: NDArray[Any], first: int, count: int) -> None:
    """Copy bytes into elements of an array, in the order of its indices.

    Local; other threads run meanwhile.

    Parameters
    ----------
    data : ndarray of uint8
        As many bytes as the elements have; shares no memory with them.
    array : ndarray
        Of any strides; if elements share memory the last one stays.
    first, count : int
        The first element, and how many.
    """
    part = array if count == array.size else entries(array, first, count)
    if part is None:
        array.flat[first : first + count] = data.view(array.dtype)
    else:
        packer(part.shape, part.strides, part.itemsize).scatter(part, data)


def copy_past(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array to another past the caches, where that can be done.

    For arrays that the caches have no room for: lines that are written whole need
    not be read first.  Local; other threads run meanwhile.

    Parameters
    ----------
    target, source : ndarray
        Of one shape and dtype, of any strides; they share no memory.
    """
    way = None
    if source.nbytes >= LEAST:
        way = _streaming(target.shape, target.strides, source.strides, target.itemsize)
    if way is None:
        np.copyto(target, source)
    else:
        way(target, source)


@lru_cache(maxsize=1024)
def _streaming(shape: Shape, to: Shape, at: Shape, itemsize: int) -> Copier | None:
    """Choose how to copy past the caches between two layouts; None: not at all."""
    run = itemsize
    loops: list[tuple[int, int, int]] = []  # innermost first
    for count, t, s in zip(reversed(shape), reversed(to), reversed(at), strict=True):
        if count == 1:
            continue
        if not loops and t == s == run:
            run *= count
        elif loops and (t, s) == tuple(loops[-1][0] * stride for stride in loops[-1][1:]):
            loops[-1] = (loops[-1][0] * count, *loops[-1][1:])
        else:
            loops.append((count, t, s))
    return None if run < _STREAMED else _planned("past", run, 0, loops[::-1])


def worthwhile(datatype: MPI.Datatype, count: int, extent: int, nbytes: int) -> StridedBlock | None:
    """Describe entries of a datatype if that may be of use.

    Local.

    Parameters
    ----------
    datatype : MPI.Datatype
        Datatype of an entry.
    count : int
        Number of entries.
    extent, nbytes : int
        Bytes from entry to entry, and of the data of all.

    Returns
    -------
    StridedBlock or None
        None for few bytes and for types that are not regular.
    """
    entry = typemap(datatype) if nbytes >= LEAST else None
    return None if entry is None else _repeated(entry, count, extent)


_repeated = lru_cache(maxsize=1024)(StridedBlock.repeated)


def gather(memory: Bytes, shift: int, block: StridedBlock, out: Bytes) -> bool:
    """Pack a block, if the compiled loops are the way to do it.

    Local; other threads run meanwhile.

    Parameters
    ----------
    memory : ndarray
        Memory that holds the block.
    shift : int
        Bytes from there to its origin.
    block : StridedBlock
        The block to copy.
    out : ndarray of uint8
        Takes ``block.nbytes`` bytes; shares no memory with the block.

    Returns
    -------
    bool
        Whether it was done.
    """
    way = _gathering(block)
    if way is not None:
        way(out, memory, 0, shift + block.start)
    return way is not None


def scatter(data: Bytes, memory: Bytes, shift: int, block: StridedBlock) -> bool:
    """Unpack a block, if the compiled loops are the way to do it.

    Local; other threads run meanwhile.

    Parameters
    ----------
    data : ndarray of uint8
        At least ``block.nbytes`` bytes side by side, none of them in the block.
    memory : ndarray
        Memory that holds the block.
    shift : int
        Bytes from there to its origin.
    block : StridedBlock
        The block to write.

    Returns
    -------
    bool
        Whether it was done; never where bytes of the block may coincide.
    """
    way = _scattering(block)
    if way is not None:
        way(memory, data, shift + block.start, 0)
    return way is not None


@lru_cache(maxsize=1024)
def _gathering(block: StridedBlock) -> Copier | None:
    """Choose how to pack a block; None if not by compiled loops."""
    if _collides(block, _READ_APART):
        return None
    return _way(block, _both(block), _ahead(block))


@lru_cache(maxsize=1024)
def _scattering(block: StridedBlock) -> Copier | None:
    """Choose how to unpack a block; None if not by compiled loops."""
    if not block.disjoint or _collides(block, _WRITTEN_APART):
        return None
    # No prefetch: a store is not waited for, and prefetching its line took up to a quarter
    # longer.
    ahead = _ahead(block) if block.run > _WORD else 0
    return _way(block, [(count, far, near) for count, near, far in _both(block)], ahead)


def _collides(block: StridedBlock, distance: int) -> bool:
    """Whether runs of middle length meet in few sets of a cache."""
    if not (_WORD <= block.run <= _FAR and block.counts and block.counts[-1] >= _MANY):
        return False
    return block.strides[-1] % distance == 0


def _both(block: StridedBlock) -> list[tuple[int, int, int]]:
    """List count, packed stride and stride of each loop, outermost first."""
    nearby, found = block.run, []
    for count, stride in reversed(block.dimensions):
        found.append((count, nearby, stride))
        nearby *= count
    return found[::-1]


def _way(block: StridedBlock, loops: list[tuple[int, int, int]], ahead: int) -> Copier | None:
    """Choose the loop for a block and write its plan."""
    if block.nbytes < LEAST:
        return None
    stride = block.strides[-1] if loops else 0
    return _planned(_loop(block.run, stride), block.run, ahead, loops)


def _planned(name: str, run: int, ahead: int, loops: list[tuple[int, int, int]]) -> Copier | None:
    """Write the plan of a loop; None if there is no such loop, or no compiled code."""
    if len(loops) > _LOOPS or not _arrays_are_known() or not code_cache.is_possible():
        return None
    padded = [(1, 0, 0)] * (_LOOPS - len(loops)) + loops
    numbers = [run, ahead, *(number for loop in padded for number in loop)]
    address = code_cache.address_of("closeranks.comms.buffers.copy_loops", name)
    return copier_at(address, np.array(numbers, np.int64))


def _loop(run: int, stride: int) -> str:
    """Name the loops over runs that lie so far apart in the innermost one."""
    if run > _LONGEST or (run > _WORD and stride and stride % _PAGE == 0):
        return "long"
    return f"short{(run - (run == _HALVED)).bit_length() - 1}"


@cache
def _arrays_are_known() -> bool:
    """Whether this NumPy keeps an array's pointer where the loops look for it."""
    probe = np.empty(1)
    place = id(probe) + object.__basicsize__
    return ctypes.c_size_t.from_address(place).value == probe.ctypes.data


def _ahead(block: StridedBlock) -> int:
    """Tell how many runs ahead memory is fetched; 0 for not at all."""
    if not block.counts or block.run > _FAR:
        return 0
    count, stride = block.counts[-1], abs(block.strides[-1])
    if stride < _FAR:
        return 0
    ahead = _AHEAD if stride <= _TOO_FAR else _AHEAD // 4
    return ahead if count >= 4 * ahead else 0
