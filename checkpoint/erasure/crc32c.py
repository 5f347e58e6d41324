"""CRC-32C of bytes, alone or while they are copied.

The polynomial of Castagnoli (IEEE Trans. Commun. 41, 1993), which processors
have an instruction for.  Bytes are summed in chunks, each from a seed of its
own: who takes the chunk of another place, or of another time, finds a sum that
does not fit.

Importing this imports llvmlite; compiling takes ten milliseconds, once a
process.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from closeranks.checkpoint.erasure.crc32c_llvm import ARGUMENTS, LINE, NAME, POLYNOMIAL, ways, write
from closeranks.checkpoint.erasure.gf256 import Bytes
from closeranks.comms.jit.object_code import emit, load
from closeranks.errors import UsageError

Sums = NDArray[np.uint32]

_ALL: Final = 0xFFFFFFFF


@cache
def table() -> Sums:
    """Tabulate what a byte adds.

    Local.

    Returns
    -------
    ndarray of uint32, shape (256,)
        Of Sarwate's algorithm, byte by byte; read-only.
    """
    sums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        sums = np.where(sums & 1, sums >> 1 ^ POLYNOMIAL, sums >> 1).astype(np.uint32)
    sums.flags.writeable = False
    return sums


def crc32c(data: Bytes | bytes, value: int = 0) -> int:
    """Sum bytes up.  Local.

    Parameters
    ----------
    data : bytes or array of uint8
        In one piece.
    value : int
        The sum of what stands before.

    Returns
    -------
    int
        As of RFC 3720, 32 bits: that of ``b"123456789"`` is 0xE3069283.
    """
    array = np.frombuffer(data, np.uint8)
    (found,) = sums(array, max(1, array.size), [value ^ _ALL])
    return int(found) ^ _ALL


def sums(data: Bytes, chunk_bytes: int, seeds: ArrayLike) -> Sums:
    """Sum chunks up.  Local; without the GIL.

    Parameters
    ----------
    data : ndarray of uint8, shape (nbytes,)
        In one piece.
    chunk_bytes : int
        Bytes of a chunk; the last may be shorter.
    seeds : array of uint32, shape (chunks,)
        Where each starts.

    Returns
    -------
    ndarray of uint32, shape (chunks,)
        The register of each at its end, neither inverted before nor after.

    Raises
    ------
    UsageError
        If there is not a seed for each chunk, or data lie in several pieces.
    """
    return _run(None, data, chunk_bytes, seeds, past=False)


def copy(
    target: Bytes, data: Bytes, chunk_bytes: int, seeds: ArrayLike, *, past: bool = False
) -> Sums:
    """Copy bytes, and sum chunks up on the way.  Local; without the GIL.

    Parameters
    ----------
    target : ndarray of uint8, shape (nbytes,)
        Where to; does not overlap ``data``.
    data, chunk_bytes, seeds
        As for `sums`.
    past : bool
        Whether to go past the caches, where ``target`` starts at a line, and so do
        its chunks.

    Returns
    -------
    ndarray of uint32, shape (chunks,)
        As `sums` gives of ``data``.

    Raises
    ------
    UsageError
        As of `sums`, or if the lengths differ.
    """
    if target.size != data.size:
        problem = f"{data.size} bytes to a place of {target.size}"
        raise UsageError("checksum", problem, "make room for all")
    aligned = target.ctypes.data % LINE == 0 and chunk_bytes % LINE == 0
    return _run(target, data, chunk_bytes, seeds, past=past and aligned)


def _run(
    target: Bytes | None, data: Bytes, chunk_bytes: int, seeds: ArrayLike, *, past: bool
) -> Sums:
    """Sum all chunks that are as long as the others, then the last."""
    found = np.array(seeds, np.uint32)
    chunks = max(1, -(-data.size // chunk_bytes)) if chunk_bytes > 0 else 0
    if found.shape != (chunks,):
        problem = f"seeds of shape {found.shape} for {chunks} chunks of {chunk_bytes} bytes"
        raise UsageError("checksum", problem, "give one for each")
    for array in (data, *(() if target is None else (target,))):
        if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
            problem = f"{array.dtype} of shape {array.shape}, strides {array.strides}"
            raise UsageError("checksum", problem, "pass uint8 in one piece")
    whole = data.size // chunk_bytes
    done = whole * chunk_bytes
    function, lanes = _function(target is not None, past), ways()[0].lanes
    for first, count, nbytes in ((0, whole, chunk_bytes), (done, 1, data.size - done)):
        if count and nbytes:
            places = [0 if array is None else array.ctypes.data + first for array in (target, data)]
            own = found[first // chunk_bytes :].ctypes.data
            shift = _shift(nbytes // (lanes * LINE) * LINE).ctypes.data
            function(*places, count, nbytes, own, shift, table().ctypes.data)
    return found


@cache
def _function(copies: bool, past: bool) -> Any:
    """Compile a loop."""
    return _FUNCTION(load(emit(write(ways()[0], copies=copies, past=past), NAME)))


_FUNCTION: Final = ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * ARGUMENTS)


@cache
def _shift(nbytes: int) -> Sums:
    """Give what so many zeros make of each bit of a sum."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    steps = table()[bits & 255] ^ bits >> 8  # one byte of zeros
    found, power = bits, nbytes
    while power:
        if power & 1:
            found = _apply(steps, found)
        steps, power = _apply(steps, steps), power >> 1
    return found


def _apply(matrix: Sums, values: Sums) -> Sums:
    """Multiply values by a matrix over bits: ``matrix[b]`` is what bit b becomes."""
    chosen = values[:, None] >> np.arange(32, dtype=np.uint32) & 1
    applied: Sums = np.bitwise_xor.reduce(np.where(chosen, matrix, 0).astype(np.uint32), axis=1)
    return applied
