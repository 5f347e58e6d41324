"""CRC-32C of bytes, alone or while they are copied.

The polynomial of Castagnoli (IEEE Trans.  Commun. 41, 1993), for which
processors have an instruction.  Bytes are summed in chunks, each from a seed
of its own: the chunk of another place, or of another time, has a sum that does
not fit.  An `Area` is a run of bytes in a slot, with the sums of its chunks.

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
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.comms.jit.object_code import emit, load_function
from closeranks.errors import UsageError

Sums = NDArray[np.uint32]

_ALL: Final = 0xFFFFFFFF


@cache
def table() -> Sums:
    """Tabulate the sums of single bytes.

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
        The sum of the bytes before.

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
    return _FUNCTION(load_function(emit(write(ways()[0], copies=copies, past=past), NAME)))


_FUNCTION: Final = ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * ARGUMENTS)


@cache
def _shift(nbytes: int) -> Sums:
    """Give the sums that single bits become after so many zeros."""
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


#: Bytes from which on a copy goes past the caches.
_LARGE = 1 << 20


class Area:
    """A run of bytes with check sums.

    Parts are put or summed up in the order in which they lie in a chunk; different
    chunks in any order, by any process that has mapped them.

    Parameters
    ----------
    memory : ndarray of uint8
        The bytes, from a multiple of 64 on.
    kept : ndarray of uint32
        Their check sums, one a chunk; those of the last part where a chunk is not
        whole yet.
    chunk : int
        Bytes of a chunk.
    seed : int
        The start of the sums: different for each area and time.

    Attributes
    ----------
    memory, kept, chunk, seed
        As given.
    """

    def __init__(self, memory: Bytes, kept: Sums, chunk: int, seed: int) -> None:
        self.memory, self.kept, self.chunk, self.seed = memory, kept, chunk, seed

    def put(self, at: int, source: Bytes) -> None:
        """Copy bytes to a place, and sum them up on the way.

        Local.

        Parameters
        ----------
        at : int
            Where to.
        source : ndarray of uint8
            In one piece.
        """
        past = source.size >= _LARGE
        for start, nbytes, size, seeds in self._parts(at, source.size):
            target = self.memory[at + start : at + start + nbytes]
            found = copy(target, source[start : start + nbytes], size, seeds, past=past)
            self._note(at + start, found)

    def sum(self, at: int, nbytes: int) -> None:
        """Sum bytes up that are there already.  Local."""
        for start, length, size, seeds in self._parts(at, nbytes):
            part = self.memory[at + start : at + start + length]
            self._note(at + start, sums(part, size, seeds))

    def damaged(self) -> list[int]:
        """List chunks that differ from their check sums.

        Local.

        Returns
        -------
        list of int
            Ascending.
        """
        if not self.memory.size:
            return []
        found = sums(self.memory, self.chunk, self._seeds(0, len(self.kept)))
        return [int(number) for number in np.flatnonzero(found != self.kept)]

    def _parts(self, at: int, nbytes: int) -> list[tuple[int, int, int, Sums]]:
        """Cut a run into what is left of a chunk, whole ones, and what begins one.

        Gives for each its start in the run, its bytes, the bytes of its
        chunks, and their seeds.
        """
        chunk, parts = self.chunk, []
        first = min(-at % chunk, nbytes)
        if first:
            number = at // chunk
            parts.append((0, first, first, self.kept[number : number + 1]))
        whole = (nbytes - first) // chunk
        begin = (at + first) // chunk
        if whole:
            parts.append((first, whole * chunk, chunk, self._seeds(begin, whole)))
        last = nbytes - first - whole * chunk
        if last:
            parts.append((nbytes - last, last, last, self._seeds(begin + whole, 1)))
        return parts

    def _seeds(self, first: int, count: int) -> Sums:
        """Give the seeds of the sums of chunks."""
        numbers = np.arange(first, first + count, dtype=np.uint32)
        return np.uint32(self.seed) + numbers * np.uint32(0x9E3779B1)

    def _note(self, at: int, found: Sums) -> None:
        """Keep sums."""
        number = at // self.chunk
        self.kept[number : number + len(found)] = found
