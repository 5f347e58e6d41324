"""`topk_allreduce`: the k largest entries of a sum of each rank's k largest.

The sums of regions are kept by their owners until the k-th largest magnitude
of all of them is known.  Only then are pairs gathered: those k.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.catalogue import SPARSE
from closeranks.collectives.dispatch.call_errors import serve_in_one_piece
from closeranks.collectives.pairs.sparse_vector import SparseVector
from closeranks.collectives.sparse.agreed_numbers import read_by_all, service_of, summed
from closeranks.collectives.sparse.canonical_pairs import CanonicalPairs
from closeranks.collectives.sparse.device_copies import read_arrays
from closeranks.collectives.sparse.kth_largest import kth_largest, largest
from closeranks.collectives.sparse.pair_agreement import agreed_cuts, n_told
from closeranks.collectives.sparse.pair_plans import problem_of, run_pairs
from closeranks.comms import argument
from closeranks.comms.gpu.array_place import placed
from closeranks.comms.result_memory import RESULTS
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.comms.gpu.array_place import DevicePlace

Array = NDArray[Any]
Ints = NDArray[np.int64]

_OPERATION: Final = "topk_allreduce"
_SPLIT: Final = "split"
_TYPES: Final = ("float16", "bfloat16", "float32", "float64")
#: Largest index: from it an index is subtracted, so that lower ones are larger keys.
_LAST: Final = 2**63 - 1


def topk_allreduce(
    comm: Communicator, x: Array, k: int, residual: Array | None = None
) -> tuple[SparseVector, Array]:
    """Sum each rank's ``k`` largest entries; return the ``k`` largest of the sums.

    Collective.  With ``a = x + residual``, each rank offers the ``k`` entries
    of ``a`` of the largest magnitude.  Of equal magnitudes the lower index
    goes first.  A NaN is larger than all numbers.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    x : ndarray, shape (n,), float16, bfloat16, float32 or float64
        This rank's vector, for instance its gradient; not changed.  It may lie on
        a device; then all that this rank gets lies there.
    k : int
        How many entries each rank offers and the result has, at most n.
    residual : ndarray, shape (n,), optional
        What earlier calls have kept back, of the type of ``x``, wherever it
        lies; not changed.

    Returns
    -------
    result : SparseVector
        ``k`` entries, of the largest magnitude among the sums of all offers,
        equal on all ranks.
    residual : ndarray, shape (n,)
        For the next call: ``a``, with 0 where this rank's offer is in the
        result.

    Raises
    ------
    Disagreement
        On every rank, if n, k or the types differ.
    UsageError
        If this rank's arguments are wrong; the others get
        `Disagreement`.

    References
    ----------
    Li and Hoefler, Near-Optimal Sparse Allreduce for Distributed Deep Learning,
    PPoPP 2022, section 3 (the scheme; thresholds are exact here, and found anew
    in each call).
    """
    service = service_of(comm, _OPERATION)
    return serve_in_one_piece(service, _OPERATION, partial(_serve, service), x, k, residual)


def _serve(
    service: Service, operation: str, x: Any, k: Any, residual: Any
) -> tuple[tuple[SparseVector, Array], str]:
    service.guard.refuse(operation)
    x, k, residual, place = read_by_all(
        service, operation, n_told(service), _read, service, x, k, residual
    )
    kept = RESULTS.array(x.shape, x.dtype)
    if residual is None:
        np.copyto(kept, x)
    else:
        np.add(x, residual, out=kept)
    offered = _largest_entries(kept, k)
    offer = CanonicalPairs(offered, kept[offered], len(x), 1, "SUM")
    said = f"topk_allreduce({len(x)} entries of {x.dtype}, k {k})"
    total, cuts, _ = agreed_cuts(service, operation, offer, said)
    result = CanonicalPairs(np.empty(0, np.int64), kept[:0], len(x), 1, "SUM")
    if k:
        sums = _summed(service, "reduce_scatter_sparse", offer, total, cuts)
        chosen = _chosen(service, sums, k)
        total, cuts, _ = agreed_cuts(service, operation, chosen, said)
        result = _summed(service, "allreduce_sparse", chosen, total, cuts)
    taken = offered[np.isin(offered, result.indices, assume_unique=True)]
    kept[taken] = 0
    arrays = (placed(one, place) for one in (result.indices, result.values, kept))
    indices, values, residual = arrays
    return (SparseVector.of_result(indices, values, len(x)), residual), _SPLIT


def _read(
    service: Service, x: Any, k: Any, residual: Any
) -> tuple[Array, int, Array | None, DevicePlace | None]:
    """Read the arguments of a call; tells also where ``x`` lies."""
    (x, residual), (place, _) = read_arrays(service, [x, residual], _OPERATION)
    x, residual = (np.asarray(one) if _is_array(one) else one for one in (x, residual))
    return x, _checked(x, k, residual), residual, place


def _is_array(given: object) -> bool:
    """Whether it is an array without a mask; results are of no subclass."""
    return isinstance(given, np.ndarray) and not isinstance(given, np.ma.MaskedArray)


def _checked(x: Any, k: Any, residual: Any) -> int:
    """Return k; UsageError says which argument is wrong."""
    argument.instance(_OPERATION, "x", x, np.ndarray, "give a NumPy array")
    for name, one in (("x", x), ("residual", residual)):
        if isinstance(one, np.ma.MaskedArray):
            raise UsageError(_OPERATION, f"{name} is masked: its mask would be lost",
                             "give array.filled(value)")  # fmt: skip
    if x.ndim != 1 or x.dtype.name not in _TYPES or not x.dtype.isnative:
        raise UsageError(_OPERATION, f"x of {x.dtype} and shape {x.shape}",
                         f"give a 1-D array of {', '.join(_TYPES)}")  # fmt: skip
    if residual is not None:
        argument.instance(_OPERATION, "residual", residual, np.ndarray, "give a NumPy array")
        if (residual.shape, residual.dtype) != (x.shape, x.dtype):
            raise UsageError(
                _OPERATION,
                f"residual of {residual.dtype} and shape {residual.shape}",
                f"x is of {x.dtype} and shape {x.shape}",
            )
    return argument.whole(_OPERATION, "k", k, below=len(x) + 1)


def _magnitudes(values: Array) -> Array:
    """See floats as integers that, without the sign bit, order magnitudes."""
    return values.view(f"i{values.dtype.itemsize}")


def _largest_entries(values: Array, k: int) -> Ints:
    """Return the indices of the k largest magnitudes of this rank, ascending."""
    if k == 0:
        return np.empty(0, np.int64)
    keys = _magnitudes(values)
    least, ties, _ = kth_largest(keys, k, lambda counts: counts)
    return largest(keys, least, ties, k)


def _summed(
    service: Service, operation: str, pairs: CanonicalPairs, total: int, cuts: Ints
) -> CanonicalPairs:
    problem = problem_of(service, operation, pairs, total)
    split = next(one for one in SPARSE[operation] if one.name == _SPLIT)
    indices, values = run_pairs(service, problem, split, pairs, cuts)
    return CanonicalPairs(indices, values, pairs.length, 1, "SUM")


def _chosen(service: Service, sums: CanonicalPairs, k: int) -> CanonicalPairs:
    """Return this rank's part of the k largest sums of all ranks."""
    keys = _magnitudes(np.ascontiguousarray(sums.values))
    add = partial(summed, service)
    least, ties, equal = kth_largest(keys, k, add)
    mask = (1 << (8 * keys.dtype.itemsize - 1)) - 1
    above = largest(keys, least, 0, len(keys))
    tied = np.flatnonzero(keys & mask == least)
    if ties < equal:  # the lower indices go first
        inverse = _LAST - sums.indices[tied]
        last, _, _ = kth_largest(inverse, ties, add)
        tied = tied[inverse >= last]
    places = np.sort(np.concatenate([above, tied]))
    return CanonicalPairs(sums.indices[places], sums.values[places], sums.length, 1, "SUM")
