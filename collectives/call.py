"""The kind of a call: what the choice of an algorithm may depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from closeranks.collectives.demand import Demand

#: Operations whose sizes no rank knows in full: one choice for all sizes.
UNSIZED: Final = frozenset({"gatherv", "scatterv", "alltoallv"})
_TYPICAL_BYTES: Final = 4096


class Call(NamedTuple):
    """What the choice may depend on.

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
    """

    operation: str
    size_class: int
    commutative: bool = True
    native: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes that stand for all calls of this kind."""
        return _TYPICAL_BYTES if self.operation in UNSIZED else 1 << max(self.size_class - 1, 0)


def call_of(demand: Demand) -> Call:
    """Say what the choice for a call may depend on.  Local."""
    return Call(
        demand.operation,
        0 if demand.operation in UNSIZED else size_class(demand.nbytes),
        demand.commutative,
        demand.native is None,
    )


def size_class(nbytes: int) -> int:
    """Class of a size: sizes from a power of two up to the next share one."""
    return int(nbytes).bit_length()
