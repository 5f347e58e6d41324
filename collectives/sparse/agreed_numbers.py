"""Short arrays over all ranks: what ranks must agree on, and numbers beside it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.selection.call_options import AUTO
from closeranks.comms import argument
from closeranks.errors import Disagreement, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service

Ints = NDArray[np.int64]
_T = TypeVar("_T")

#: A digest is compared in pieces: the sum of a piece's squares fits into 63 bits.
_PIECE_BITS: Final = 24
_PIECES: Final = 3


def service_of(comm: Communicator, where: str) -> Service:
    """Return what serves the calls of a communicator.  Local.

    Parameters
    ----------
    comm : Communicator
        Given by the program.
    where : str
        The call, for the text of an error.

    Raises
    ------
    UsageError
        If it is no communicator of closeranks.
    """
    if not hasattr(comm, "_membership"):
        remedy = "give what closeranks.init returned, or a communicator made from it"
        raise UsageError(where, f"comm is {argument.shown(comm)}", remedy)
    return comm._membership.service


def agreed_sum(
    service: Service, where: str, said: str, numbers: Ints, refusal: UsageError | None = None
) -> Ints:
    """Compare what ranks must agree on, and add numbers over all ranks.

    Collective.  A rank whose arguments are wrong takes part, so that the others
    hear of it at once.

    Parameters
    ----------
    service : Service
        Of the communicator; of at most 2^15 ranks.
    where : str
        The call, for the text of an error.
    said : str
        What this rank asks for, in words: the same on all ranks; "" if its
        arguments do not even say that.
    numbers : ndarray of int64
        To be added; as many on all ranks.
    refusal : UsageError, optional
        What is wrong with this rank's arguments.

    Returns
    -------
    ndarray of int64
        The sums.

    Raises
    ------
    Disagreement
        On every rank, with the words of each; also where another one refuses.
    UsageError
        If this rank refuses the call: the ``refusal``.
    """
    size = service.size
    digest = int.from_bytes(blake2b(said.encode(), digest_size=9).digest(), "little")
    pieces = [(digest >> _PIECE_BITS * piece) % (1 << _PIECE_BITS) for piece in range(_PIECES)]
    refuses = int(refusal is not None)
    told = np.concatenate([pieces, np.square(pieces), [refuses], numbers]).astype(np.int64)
    found = summed(service, told)
    if refusal is not None:
        refusal.is_heard = True
    # Equal numbers alone have the sum of squares that their sum asks for.
    are_equal = all(
        size * int(found[_PIECES + piece]) == int(found[piece]) ** 2 for piece in range(_PIECES)
    )
    n_refuse = int(found[2 * _PIECES])
    if not are_equal or 0 < n_refuse < size:
        _explain(service, where, said, refusal)
    if refusal is not None:
        raise refusal
    return found[2 * _PIECES + 1 :]


def _explain(service: Service, where: str, said: str, refusal: UsageError | None) -> None:
    """Raise what keeps ranks from one call; collective."""
    words = None if refusal is None else f"wrong arguments ({refusal})"
    told = service.careful.allgather((said, words))
    if refusal is not None and len({one for one, _ in told if one}) <= 1:
        raise refusal
    raise Disagreement(where, {rank: why or one for rank, (one, why) in enumerate(told)})


def read_by_all(
    service: Service, where: str, n_numbers: int, read: Callable[..., _T], *arguments: Any
) -> _T:
    """Read the arguments of a call that goes on with `agreed_sum`.

    Local, unless they are wrong: then this rank takes part in the sum.

    Parameters
    ----------
    service, where
        As of `agreed_sum`.
    n_numbers : int
        Numbers that other ranks add.
    read : callable
        Raises UsageError.
    *arguments
        For it.

    Returns
    -------
    object
        Its result.

    Raises
    ------
    UsageError
        Of ``read``; the other ranks get `Disagreement`.
    """
    try:
        return read(*arguments)
    except UsageError as error:
        agreed_sum(service, where, "", np.zeros(n_numbers, np.int64), error)
        raise


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
