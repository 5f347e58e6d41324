"""An erasure code: from any blocks that are as many as the data, all others.

Systematic Reed-Solomon over the field of 256 elements (I. S. Reed, G. Solomon,
J. SIAM 8, 1960, with the parity matrices of
`closeranks.checkpoint.erasure.generator_matrix`). Pure: no MPI, no files.  A
code trusts what it is given: a block that is not what was encoded spoils all
that is rebuilt from it, so check sums first and leave it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from closeranks.checkpoint.erasure import cuda_code
from closeranks.checkpoint.erasure.generator_matrix import (
    Blocks,
    Bytes,
    Recipe,
    invert,
    matmul,
    parity_matrix,
)
from closeranks.errors import TooManyErasures, UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.erasure.matrix_product import Calls, Product

#: Sets of losses whose products are kept.
_KEPT: Final = 256
#: Said of a product that is all done.
_ALL: Final = 1
_ARRAYS: Final = {np.ndarray}
_TRUTHS: Final = {bool}


class Code:
    """A code of so many data and parity blocks.

    Blocks are numbered: first those of the data, then those of the parity.

    Parameters
    ----------
    data, parity : int
        At least one each, at most 255 together.
    matrix : str
        ``auto``, ``xor``, ``power`` or ``cauchy``, see
        `closeranks.checkpoint.erasure.generator_matrix.parity_matrix`.

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
        self.matrix = parity_matrix(data, parity, matrix)
        self.matrix.flags.writeable = False
        self.parity, self.data = self.matrix.shape
        self._encodes: Calls | None = None
        self._rebuilder = lru_cache(maxsize=_KEPT)(self._make_rebuilder)
        #: What `reconstruct` was told is there -> what rebuilds the rest in place.
        self._rebuilds: dict[Any, Calls] = {}

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
            The data, each block in one piece; all on the host or all on a
            device, which computes then (CuPy's arrays, or others with their
            interface).
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
        calls = self._encodes
        if calls is not None and out is not None:
            done = _call(calls, blocks, self.data, out)
            if done > _ALL:
                calls.product.finish(blocks, out)
            if done:
                return out
        return self._encode(blocks, out)

    def encoder(self, blocks: Blocks, out: Blocks) -> Callable[[], None]:
        """Prepare to encode the same blocks again and again.

        Local.  Looks at the arrays once, as `encode` does each time.

        Parameters
        ----------
        blocks, out : array of uint8, or arrays
            As of `encode`; both stay where they are.

        Returns
        -------
        callable
            Encodes the contents of the blocks at the call, and keeps them
            alive.  Any thread may call it, one at a time.

        Raises
        ------
        UsageError
            If a number, a length or a kind does not fit.
        """
        if cuda_code.is_device(blocks) or cuda_code.is_device(out):
            return lambda: cuda_code.encode(self.matrix, blocks, out) and None
        self._check_data(blocks, out)
        return self._encoding.product.bind(blocks, out)

    def _encode(self, blocks: Blocks, out: Blocks | None) -> Blocks:
        """Encode blocks that are looked at one by one."""
        from closeranks.checkpoint.erasure.matrix_product import aligned_rows, check_blocks

        if cuda_code.is_device(blocks) or cuda_code.is_device(out):
            return cast("Blocks", cuda_code.encode(self.matrix, blocks, out))
        if out is None:
            nbytes = check_blocks("encode", "data blocks", blocks, self.data)
            return self.encode(blocks, aligned_rows(self.parity, nbytes))
        self._check_data(blocks, out)
        self._encoding.product(blocks, out)
        return out

    @property
    def _encoding(self) -> Calls:
        """The product with the data."""
        from closeranks.checkpoint.erasure.matrix_product import Calls, Product

        if self._encodes is None:
            total, data = self.data + self.parity, self.data
            self._encodes = Calls(
                Product(self.matrix), total, range(data), range(data, total), data
            )
        return self._encodes

    def _check_data(self, blocks: Blocks, out: Blocks) -> None:
        """Refuse blocks that cannot be encoded."""
        from closeranks.checkpoint.erasure.matrix_product import check_blocks

        nbytes = check_blocks("encode", "data blocks", blocks, self.data)
        check_blocks("encode", "parity blocks", out, self.parity, nbytes, writable=True)

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
        if out is blocks:
            calls = self._rebuilds.get(key := _key(present))
            if calls is not None:
                done = _call(calls, blocks, self.data + self.parity)
                if done > _ALL:
                    calls.finish(blocks)
                if done:
                    return blocks
            elif key is not None:
                self._keep(key, self._present(present))
        return self._reconstruct(blocks, self._present(present), out)

    def rebuilder(self, blocks: Blocks, present: ArrayLike) -> Callable[[], None]:
        """Prepare to rebuild the same lost blocks again and again, in place.

        Local.

        Parameters
        ----------
        blocks : array of uint8, or arrays
            As of `reconstruct`; they stay where they are.
        present : array of bool, shape (data + parity,)
            Which are not lost.

        Returns
        -------
        callable
            As of `encoder`.

        Raises
        ------
        TooManyErasures, UsageError
            As of `reconstruct`.
        """
        from closeranks.checkpoint.erasure.matrix_product import check_blocks

        here = self._present(present)
        rebuild, recipe = self._rebuilder(here)
        if cuda_code.is_device(blocks):
            return lambda: cuda_code.reconstruct(recipe, blocks, blocks) and None
        check_blocks("reconstruct", "blocks", blocks, len(here), writable=True)
        if rebuild is None:
            return lambda: None
        return rebuild.bind([blocks[n] for n in recipe.read], [blocks[n] for n in recipe.lost])

    def _reconstruct(self, blocks: Blocks, here: tuple[bool, ...], out: Blocks | None) -> Blocks:
        """Rebuild blocks that are looked at one by one."""
        from closeranks.checkpoint.erasure.matrix_product import aligned_rows, check_blocks

        rebuild, recipe = self._rebuilder(here)
        if cuda_code.is_device(blocks) or cuda_code.is_device(out):
            return cast("Blocks", cuda_code.reconstruct(recipe, blocks, out))
        nbytes = check_blocks("reconstruct", "blocks", blocks, len(here))
        everything = aligned_rows(len(here), nbytes) if out is None else out
        check_blocks("reconstruct", "blocks of out", everything, len(here), nbytes, writable=True)
        if everything is not blocks:
            for start, stop in _runs(recipe.kept):
                if isinstance(everything, np.ndarray) and isinstance(blocks, np.ndarray):
                    everything[start:stop] = blocks[start:stop]
                else:
                    for number in range(start, stop):
                        everything[number][:] = blocks[number]
            return self.reconstruct(everything, here, everything)
        if rebuild is not None:
            rebuild([blocks[n] for n in recipe.read], [everything[n] for n in recipe.lost])
        return everything

    def _keep(self, key: Any, here: tuple[bool, ...]) -> None:
        """Prepare to rebuild the lost blocks, for the next time."""
        from closeranks.checkpoint.erasure.matrix_product import Calls

        rebuild, recipe = self._rebuilder(here)
        if rebuild is not None and len(self._rebuilds) < _KEPT:
            self._rebuilds[key] = Calls(rebuild, len(here), recipe.read, recipe.lost, 0)

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
        """Check the pattern of losses."""
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
        from closeranks.checkpoint.erasure.matrix_product import Product

        kept, lost = np.flatnonzero(here), np.flatnonzero(np.logical_not(here))
        read = kept[: self.data]
        generator = np.concatenate([np.eye(self.data, dtype=np.uint8), self.matrix])
        matrix = matmul(generator[lost], invert(generator[read]))
        recipe = Recipe(_numbers(lost), _numbers(kept), _numbers(read), matrix)
        return (Product(matrix) if len(lost) else None), recipe


@lru_cache(maxsize=_KEPT)
def _runs(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    """Put numbers together that follow one another."""
    ends = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    lots = [numbers[a:b] for a, b in itertools.pairwise([0, *ends, len(numbers)])]
    return [(lot[0], lot[-1] + 1) for lot in lots if lot]


def _call(calls: Calls, blocks: Blocks, count: int, *more: Blocks) -> int:
    """Multiply blocks, so many in the first lot, by one call if they are plain."""
    given: list[Any] = []
    for lot in (blocks, *more):
        if type(lot) is np.ndarray and lot.ndim == 2:
            given.append(lot)
        elif type(lot) in (list, tuple) and set(map(type, lot)) == _ARRAYS:
            given += lot
        else:
            return 0
    return calls(*given) if len(blocks) == count else 0


def _key(present: Any) -> Any:
    """Give the key of a pattern of losses; None where that takes a closer look."""
    if type(present) is np.ndarray:
        return present.tobytes() if present.dtype == np.bool_ and present.ndim == 1 else None
    if type(present) in (list, tuple) and set(map(type, present)) == _TRUTHS:
        return tuple(present)
    return None


def _numbers(found: np.ndarray) -> tuple[int, ...]:
    """Give plain integers."""
    return tuple(found.tolist())
