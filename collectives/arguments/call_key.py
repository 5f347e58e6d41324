"""The one key by which anything of a call is looked up again.

It has two parts.  What MPI obliges all ranks to agree on is in `Agreed`: by it
alone algorithms are chosen and trials are kept, since all ranks must choose
alike.  What differs from rank to rank is in `Local`: a rank keeps bound plans
and kernels for itself by both parts together.  A call makes its key once, see
`closeranks.collectives.arguments.collective_call.CollectiveCall.key`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

#: There are so many size classes.
CLASSES: Final = 64
#: Operations whose sizes no rank knows in full: one choice for all sizes.
UNSIZED: Final = frozenset({"gatherv", "scatterv", "alltoallv"})


_TYPICAL_BYTES: Final = 4096


class Agreed(NamedTuple):
    """What is equal on all ranks of a right call.

    Attributes
    ----------
    operation : str
        For instance ``allreduce``.
    size_class : int
        Bit length of the signature's bytes (of the vector, or of one rank's
        block; v-operations that all ranks know in full: of the mean block);
        0 for `UNSIZED` operations.
    commutative : bool
        Whether operands may change places.
    native : bool
        Whether the library can do it at all (not for bfloat16 sums, say).
    root : int
        Root of rooted operations, else 0.
    op : str
        Name of the reduction, see `title`; nothing where there is none.
    element : numpy.dtype or None
        What is reduced.
    """

    operation: str
    size_class: int
    commutative: bool = True
    native: bool = True
    root: int = 0
    op: str = ""
    element: np.dtype[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that stand for all calls of this kind."""
        return _TYPICAL_BYTES if self.operation in UNSIZED else 1 << max(self.size_class - 1, 0)

    @property
    def choice(self) -> Agreed:
        """The calls that share a choice: of all roots, elements and ops alike.

        A plan moves as many bytes for each of them, and a program that takes every
        rank for the root in turn does not try the same candidates for each.
        """
        if self.root or self.op or self.element is not None:
            return Agreed(self.operation, self.size_class, self.commutative, self.native)
        return self


class Local(NamedTuple):
    """What a rank alone knows of its call; no addresses.

    Attributes
    ----------
    nbytes, elements : int
        As ``nbytes`` and ``count`` of `CollectiveCall`.
    counts : bytes or None
        Of the blocks, as far as this rank knows them.
    in_place : bool
        Whether input and output share memory.
    op : int
        Identity of the reduction; who keeps the key keeps that alive.
    arrays : tuple of object
        Types of the arrays that are passed, None where something else is.
    sent, received : numpy.dtype or None
        What the buffers are counted in, whatever passes them.
    """

    nbytes: int
    elements: int
    counts: bytes | None
    in_place: bool
    op: int
    arrays: tuple[object, object]
    sent: np.dtype[Any] | None
    received: np.dtype[Any] | None


class CallKey(NamedTuple):
    """All that decides what serves a call, but for its addresses."""

    agreed: Agreed
    local: Local


def size_class(nbytes: int) -> int:
    """Class of a size: sizes from a power of two up to the next share one."""
    return int(nbytes).bit_length()
