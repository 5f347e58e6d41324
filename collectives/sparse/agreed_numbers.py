"""Short arrays over all ranks: what ranks must agree on, and numbers beside it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.selection.call_options import AUTO

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service

Ints = NDArray[np.int64]

#: A digest is compared in pieces: the sum of a piece's squares fits into 63 bits.
_PIECE_BITS: Final = 24
_PIECES: Final = 3


def agreed_sum(service: Service, where: str, said: str, numbers: Ints) -> Ints:
    """Compare what ranks must agree on, and add numbers over all ranks.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator; of at most 2^15 ranks.
    where : str
        The call, for the text of an error.
    said : str
        What this rank asks for, in words: the same on all ranks.
    numbers : ndarray of int64
        To be added; as many on all ranks.

    Returns
    -------
    ndarray of int64
        The sums.

    Raises
    ------
    Disagreement
        On every rank, with the words of each.
    """
    size = service.size
    digest = int.from_bytes(blake2b(said.encode(), digest_size=9).digest(), "little")
    pieces = [(digest >> _PIECE_BITS * piece) % (1 << _PIECE_BITS) for piece in range(_PIECES)]
    told = np.concatenate([pieces, np.square(pieces), numbers]).astype(np.int64)
    found = summed(service, told)
    for piece in range(_PIECES):
        # Equal numbers alone have the sum of squares that their sum asks for.
        if size * int(found[_PIECES + piece]) != int(found[piece]) ** 2:
            agree_equal(service.careful, where, said)
    return found[2 * _PIECES :]


def summed(service: Service, numbers: Ints) -> Ints:
    """Add a short array over all ranks, into a new one.  Collective."""
    return _reduced(service, numbers, MPI.SUM)


def greatest(service: Service, numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the greatest of each number of a short array, of all ranks.  Collective."""
    return _reduced(service, numbers, MPI.MAX)


def _reduced(service: Service, numbers: NDArray[Any], op: MPI.Op) -> NDArray[Any]:
    if service.size == 1:
        return numbers
    result = np.empty_like(numbers)
    service.block("allreduce", AUTO, numbers, result, op)
    return result
