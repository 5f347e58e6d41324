"""A run of bytes in a slot, and the check sums of its chunks."""

from __future__ import annotations

import numpy as np

from closeranks.checkpoint.erasure import crc32c
from closeranks.checkpoint.erasure.crc32c import Sums
from closeranks.checkpoint.erasure.gf256 import Bytes

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
        What the sums start from: different for each area and time.

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
            found = crc32c.copy(target, source[start : start + nbytes], size, seeds, past=past)
            self._note(at + start, found)

    def sum(self, at: int, nbytes: int) -> None:
        """Sum bytes up that are there already.  Local."""
        for start, length, size, seeds in self._parts(at, nbytes):
            part = self.memory[at + start : at + start + length]
            self._note(at + start, crc32c.sums(part, size, seeds))

    def damaged(self) -> list[int]:
        """List chunks that are not what was written.

        Local.

        Returns
        -------
        list of int
            Ascending.
        """
        if not self.memory.size:
            return []
        found = crc32c.sums(self.memory, self.chunk, self._seeds(0, len(self.kept)))
        return [int(number) for number in np.flatnonzero(found != self.kept)]

    def _parts(self, at: int, nbytes: int) -> list[tuple[int, int, int, Sums]]:
        """Cut a run into what is left of a chunk, whole ones, and what begins one.

        Gives for each where it starts in the run, its bytes, those of its chunks,
        and what their sums start from.
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
        """Give what the sums of chunks start from."""
        numbers = np.arange(first, first + count, dtype=np.uint32)
        return np.uint32(self.seed) + numbers * np.uint32(0x9E3779B1)

    def _note(self, at: int, found: Sums) -> None:
        """Keep sums."""
        number = at // self.chunk
        self.kept[number : number + len(found)] = found
