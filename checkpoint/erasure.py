"""An erasure code: from any blocks that are as many as the data, all others.

Systematic Reed-Solomon over the field of 256 elements (I. S. Reed, G. Solomon,
J. SIAM 8, 1960, with the parity matrices of `closeranks.checkpoint.matrices`).
Pure: no MPI, no files.  A code trusts what it is given: a block that is not
what was encoded spoils all that is rebuilt from it, so check sums first and
leave it out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from closeranks.checkpoint import device_code
from closeranks.checkpoint.gf256 import Blocks, Bytes, invert, matmul
from closeranks.checkpoint.matrices import parity_matrix
from closeranks.errors import TooManyErasures, UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.product import Product


class Recipe(NamedTuple):
    """How lost blocks are rebuilt.

    Attributes
    ----------
    lost : tuple of int
        The blocks.
    kept : tuple of int
        The others.
    read : tuple of int
        Those of them that are read, as many as the data.
    matrix : ndarray of uint8, shape (len(lost), len(read))
        Gives the first as sums of the second.
    """

    lost: tuple[int, ...]
    kept: tuple[int, ...]
    read: tuple[int, ...]
    matrix: Bytes


class Code:
    """A code of so many data and parity blocks.

    Blocks are numbered: first those of the data, then those of the parity.

    Parameters
    ----------
    data, parity : int
        At least one each, at most 255 together.
    matrix : str
        ``auto``, ``xor``, ``power`` or ``cauchy``, see
        `closeranks.checkpoint.matrices.parity_matrix`.

    Raises
    ------
    UsageError
        If there is no such code.

    Examples
    --------
    >>> import numpy as np
    >>> code = Code(data=3, parity=2)
    >>> blocks = np.arange(12, dtype=np.uint8).reshape(3, 4)
    >>> everything = np.concatenate([blocks, code.encode(blocks)])
    >>> everything[[0, 4]] = 0
    >>> code.reconstruct(everything, [False, True, True, True, False])[0]
    array([0, 1, 2, 3], dtype=uint8)
    """

    def __init__(self, data: int, parity: int, matrix: str = "auto") -> None:
        self.data, self.parity = int(data), int(parity)
        self.matrix = parity_matrix(self.data, self.parity, matrix)
        self.matrix.flags.writeable = False
        self._encoder: Product | None = None
        self._rebuilder = lru_cache(maxsize=256)(self._make_rebuilder)

    def __repr__(self) -> str:
        return f"Code(data={self.data}, parity={self.parity})"

    @overload
    def encode(self, blocks: Blocks) -> Bytes: ...

    @overload
    def encode(self, blocks: Blocks, out: Blocks | None) -> Blocks: ...

    def encode(self, blocks: Blocks, out: Blocks | None = None) -> Blocks:
        """Give the parity blocks of data blocks.  Local.

        Parameters
        ----------
        blocks : array of uint8, shape (data, nbytes), or arrays of shape (nbytes,)
            The data, each block in one piece; all on the host or all on a device,
            which computes then (CuPy's arrays, or what else has their interface).
        out : the same for (parity, nbytes), optional
            Where to; memory of its own if not given.

        Returns
        -------
        out : ndarray of uint8, shape (parity, nbytes), or what was passed
            Free at once, as the data are.  On a device an array of CuPy's, in the
            order of the streams.

        Raises
        ------
        UsageError
            If a number, a length or a kind does not fit.
        """
        from closeranks.checkpoint.product import Product, aligned_rows, check_blocks

        if device_code.is_device(blocks) or device_code.is_device(out):
            return cast("Blocks", device_code.encode(self.matrix, blocks, out))
        if self._encoder is None:
            self._encoder = Product(self.matrix)
        nbytes = check_blocks("encode", "data blocks", blocks, self.data)
        parities = aligned_rows(self.parity, nbytes) if out is None else out
        check_blocks("encode", "parity blocks", parities, self.parity, nbytes)
        self._encoder(blocks, parities)
        return parities

    @overload
    def reconstruct(self, blocks: Blocks, present: ArrayLike) -> Bytes: ...

    @overload
    def reconstruct(self, blocks: Blocks, present: ArrayLike, out: Blocks | None) -> Blocks: ...

    def reconstruct(self, blocks: Blocks, present: ArrayLike, out: Blocks | None = None) -> Blocks:
        """Give all blocks, lost ones rebuilt.  Local.

        Parameters
        ----------
        blocks : array of uint8, shape (data + parity, nbytes), or as many arrays
            All blocks, of shape (nbytes,) where they lie apart; those that are
            lost are of any content.  On the host or on a device, as of `encode`.
        present : array of bool, shape (data + parity,)
            Which are not lost.
        out : the same as blocks, optional
            Where to; ``blocks`` itself rebuilds in place.  Memory of its own if not
            given.

        Returns
        -------
        out : ndarray of uint8, shape (data + parity, nbytes), or what was passed
            Free at once, as the blocks are; on a device as of `encode`.

        Raises
        ------
        TooManyErasures
            If more are lost than there are parity blocks; nothing is written.
        UsageError
            If a number, a length or a kind does not fit.
        """
        from closeranks.checkpoint.product import aligned_rows, check_blocks

        here = self._present(present)
        rebuild, recipe = self._rebuilder(here)
        if device_code.is_device(blocks) or device_code.is_device(out):
            return cast("Blocks", device_code.reconstruct(recipe, blocks, out))
        nbytes = check_blocks("reconstruct", "blocks", blocks, len(here))
        everything = aligned_rows(len(here), nbytes) if out is None else out
        check_blocks("reconstruct", "blocks of out", everything, len(here), nbytes)
        if everything is not blocks:
            for number in recipe.kept:
                everything[number][:] = blocks[number]
        if rebuild is not None:
            rebuild([blocks[n] for n in recipe.read], [everything[n] for n in recipe.lost])
        return everything

    def recipe(self, present: ArrayLike) -> Recipe:
        """Tell how lost blocks are rebuilt.  Local.

        Parameters
        ----------
        present : array of bool, shape (data + parity,)
            Which are not lost.

        Returns
        -------
        Recipe
            The same for the same losses; it reads the data that are left, and the
            first parities that are.

        Raises
        ------
        TooManyErasures
            If more are lost than there are parity blocks.
        UsageError
            If ``present`` is of another length.
        """
        return self._rebuilder(self._present(present))[1]

    def _present(self, present: ArrayLike) -> tuple[bool, ...]:
        """Check what is left."""
        here = tuple(np.asarray(present, bool).ravel().tolist())
        if len(here) != self.data + self.parity:
            problem = f"present names {len(here)} blocks of {self.data + self.parity}"
            raise UsageError("reconstruct", problem, "say it of every block")
        lost = [number for number, is_here in enumerate(here) if not is_here]
        if len(lost) > self.parity:
            raise TooManyErasures("reconstruct", lost, self.parity)
        return here

    def _make_rebuilder(self, here: tuple[bool, ...]) -> tuple[Product | None, Recipe]:
        """Find out how to rebuild, once for each set of losses."""
        from closeranks.checkpoint.product import Product

        kept, lost = np.flatnonzero(here), np.flatnonzero(np.logical_not(here))
        read = kept[: self.data]
        generator = np.concatenate([np.eye(self.data, dtype=np.uint8), self.matrix])
        matrix = matmul(generator[lost], invert(generator[read]))
        recipe = Recipe(_numbers(lost), _numbers(kept), _numbers(read), matrix)
        return (Product(matrix) if len(lost) else None), recipe


def _numbers(found: np.ndarray) -> tuple[int, ...]:
    """Give plain integers."""
    return tuple(found.tolist())
