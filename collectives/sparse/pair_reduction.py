"""`Communicator.Allreduce_sparse`: pairs of all ranks, combined, on every rank.

A call first adds one short array over all ranks: how many pairs there are,
where they lie, and a digest of what ranks must agree on.  From it all ranks
choose the same algorithm, and cut the index space the same way.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.analysis.cost_model import cost
from closeranks.collectives.builders.catalogue import SPARSE, find
from closeranks.collectives.dispatch.call_errors import serve_in_one_piece
from closeranks.collectives.dispatch.open_plans import open_plans_of
from closeranks.collectives.pairs.pair_message import (
    OPS,
    TYPES,
    loop,
)
from closeranks.collectives.pairs.sparse_vector import SparseVector, pairs_on_host
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.reduction.op import Mean, name_of, title
from closeranks.collectives.selection.call_options import AUTO
from closeranks.collectives.selection.explanation import Candidate, Explanation
from closeranks.collectives.sparse.agreed_numbers import greatest, read_by_all
from closeranks.collectives.sparse.canonical_pairs import CanonicalPairs, canonical
from closeranks.collectives.sparse.device_copies import count_copies
from closeranks.collectives.sparse.pair_agreement import agreed_cuts, n_told
from closeranks.collectives.sparse.pair_plans import problem_of, run_pairs
from closeranks.collectives.sparse.pair_prices import DENSE, DENSEST, pair_prices, rounded, slowness
from closeranks.comms import argument
from closeranks.comms.gpu.array_place import placed
from closeranks.comms.result_memory import RESULTS
from closeranks.errors import Unavailable, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.comms.gpu.array_place import DevicePlace

Ints = NDArray[np.int64]

_OPERATION: Final = "allreduce_sparse"
_CALL: Final = "Allreduce_sparse"
_SPLIT: Final = "split"
#: Choices that are remembered.
_MOST_CHOICES: Final = 1024
#: From so many bytes on ranks ask each other first whether a whole vector fits.
_ASKED_BYTES: Final = 1 << 26


def allreduce_sparse(
    comm: Communicator, vector: SparseVector, op: Any, algorithm: str
) -> SparseVector:
    """Serve `Communicator.Allreduce_sparse`.

    Collective.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    vector, op, algorithm
        As there.

    Returns
    -------
    SparseVector
        As there.
    """
    service = comm.membership.service
    return serve_in_one_piece(service, _OPERATION, partial(_serve, service), vector, op, algorithm)


def _serve(
    service: Service, operation: str, vector: Any, op: Any, algorithm: Any
) -> tuple[SparseVector, str]:
    service.guard.refuse(operation)
    pairs, index_place, value_place = read_by_all(
        service, _CALL, n_told(service), _read, service, vector, op, algorithm
    )
    said = (
        f"Allreduce_sparse(length {pairs.length}, {_shape_of(vector)} of {pairs.values.dtype},"
        f" op {title(op)}, algorithm {algorithm!r})"
    )
    total, cuts, slower = agreed_cuts(service, _CALL, pairs, said)
    problem = problem_of(service, _OPERATION, pairs, total)
    name = _chosen(service, problem, slower) if algorithm == AUTO else algorithm
    if name == DENSE and (lacking := _lacking(service, pairs)) is not None:
        if algorithm == DENSE:
            nbytes = pairs.length * pairs.row_bytes
            raise Unavailable(
                f"memory for {nbytes} bytes of a whole vector on rank {lacking}",
                "use algorithm='split'",
            )
        name = _SPLIT
    if name == DENSE:
        indices, values = _combined_densely(service, pairs)
    else:
        indices, values = run_pairs(service, problem, find(_OPERATION, name), pairs, cuts)
    if isinstance(op, Mean):
        values = _divided(values, service.size)
    rows = values.reshape(len(indices), *vector.values.shape[1:])
    found = SparseVector.of_result(
        placed(indices, index_place), placed(rows, value_place), pairs.length
    )
    return found, name


def _shape_of(vector: SparseVector) -> str:
    return "values" if len(vector.values.shape) == 1 else f"rows of {vector.width}"


def _read(
    service: Service, vector: Any, op: Any, algorithm: Any
) -> tuple[CanonicalPairs, DevicePlace | None, DevicePlace | None]:
    """Read the arguments of a call; UsageError says what is wrong with them.

    Tells also where the indices and the values lie.
    """
    where = _CALL
    argument.instance(where, "vector", vector, SparseVector, "give a SparseVector")
    names = (AUTO, *(one.name for one in SPARSE[_OPERATION]), DENSE)
    if not isinstance(algorithm, str) or algorithm not in names:
        raise UsageError(
            where, f"no algorithm {argument.shown(algorithm)}", f"one of {', '.join(names)}"
        )
    argument.instance(where, "op", op, (MPI.Op, Mean), "give an MPI.Op, or closeranks.MEAN")
    name = "SUM" if isinstance(op, Mean) else name_of(op)
    if name not in OPS:
        raise UsageError(where, f"op {title(op)}", f"one of {', '.join(OPS)}, MEAN")
    indices, values, index_place, value_place = pairs_on_host(vector, where)
    count_copies(service, (index_place, value_place))
    if indices.dtype != np.int64 or len(values) != len(indices):
        problem = f"{len(indices)} indices of {indices.dtype} and {len(values)} values"
        raise UsageError(where, problem, "change no array of a SparseVector")
    if isinstance(op, Mean) and values.dtype.kind in "iu":
        raise UsageError(where, f"MEAN of {values.dtype}", "convert the values to floats")
    if values.dtype.name not in TYPES or not values.dtype.isnative:
        raise UsageError(where, f"values of {values.dtype}", f"one of {', '.join(TYPES)}")
    flat = np.ascontiguousarray(values).reshape(-1)
    pairs = canonical(indices, flat, vector.length, vector.width, name)
    return pairs, index_place, value_place


def _chosen(service: Service, problem: Problem, slower: float) -> str:
    """Return the algorithm of the least price; asked once for each kind of call."""
    if service.family.deterministic:
        return _SPLIT  # a choice by prices may be another in the next run
    key = (problem.count, problem.itemsize, problem.length, problem.commutative, slower)
    known = open_plans_of(service).choices
    if key not in known:
        if len(known) == _MOST_CHOICES:
            known.clear()
        prices = pair_prices(problem, slower)
        known[key] = min(prices, key=prices.__getitem__)
    return known[key]


#: What changes no operand, by op: of a sum of floats it is the negative zero.
_NEUTRAL: Final = {"SUM": -0.0, "PROD": 1, "MIN": np.inf, "MAX": -np.inf}
_MPI_OPS: Final = {"SUM": MPI.SUM, "PROD": MPI.PROD, "MIN": MPI.MIN, "MAX": MPI.MAX}


def _neutral(op: str, dtype: np.dtype[Any]) -> Any:
    if dtype.kind not in "iu" or op in ("SUM", "PROD"):
        return _NEUTRAL[op]
    limits = np.iinfo(dtype)
    return limits.max if op == "MIN" else limits.min


def _lacking(service: Service, pairs: CanonicalPairs) -> int | None:
    """Return a rank without room for a whole vector; None if all have it.

    Collective, where vectors are long.
    """
    if pairs.length * pairs.row_bytes < _ASKED_BYTES:
        return None
    mine = 0 if _is_room(pairs, service.world.node.size) else service.rank + 1
    (found,) = greatest(service, np.array([mine])).tolist()
    return int(found) - 1 if found else None


def _is_room(pairs: CanonicalPairs, ranks: int) -> bool:
    """Whether so many ranks of a node can hold a whole vector and its bits.  Local."""
    nbytes = pairs.length * pairs.row_bytes + pairs.length // 8 + 1
    if ranks * nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        return False
    try:
        np.empty(nbytes, np.uint8)  # nothing is written: it takes no memory yet
    except MemoryError:  # a limit of this process
        return False
    return True


def _combined_densely(service: Service, pairs: CanonicalPairs) -> tuple[Ints, NDArray[Any]]:
    """Combine whole vectors, and a bit for each index that says whether it is there."""
    length, width, dtype = pairs.length, pairs.width, pairs.values.dtype
    dense = RESULTS.array(length * width, dtype)
    dense.fill(_neutral(pairs.op, dtype))
    if width == 1:  # five times as fast as by rows
        dense[pairs.indices] = pairs.values
    else:
        dense.reshape(length, width)[pairs.indices] = pairs.values.reshape(-1, width)
    there = np.zeros(-(-length // 8), np.uint8)
    loop("write_bits", pairs.indices, len(pairs.indices), 0, there)
    # In the library a NaN may lose in MIN and MAX, and sums of short integers may saturate.
    is_short = dtype.kind in "iu" and dtype.itemsize <= 2
    algorithm = AUTO if pairs.op in ("SUM", "PROD") and not is_short else "rabenseifner"
    service.block("allreduce", algorithm, MPI.IN_PLACE, dense, _MPI_OPS[pairs.op])
    service.block("allreduce", AUTO, MPI.IN_PLACE, there, MPI.BOR)
    indices = RESULTS.array(int(np.bitwise_count(there).sum()), np.int64)
    loop("read_bits", there, len(there), 0, indices)
    if len(indices) < length:  # in place: a new array would cost as much as the sum
        rows = dense.view(f"i{dtype.itemsize}")
        loop(f"gather_rows.{rows.dtype.name}", rows, indices, len(indices), width)
    return indices, dense[: len(indices) * width]


def _divided(values: NDArray[Any], size: int) -> NDArray[Any]:
    """Divide sums by the number of ranks."""
    wide = values.astype(np.float32) if values.dtype.itemsize == 2 else values
    return (wide / size).astype(values.dtype)


def foretell_sparse(
    comm: Communicator, nnz: Any, length: Any, width: Any, dtype: np.dtype[Any]
) -> Explanation:
    """Say which algorithm `Communicator.Allreduce_sparse` would use, and why.

    Local: this rank knows neither the counts of the others nor how fast their
    kernels are, and takes its own for theirs.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    nnz : int
        Entries of a rank.
    length, width : int
        Entries of the vector, and values of an entry.
    dtype : numpy.dtype
        Of a value.

    Returns
    -------
    Explanation
        Of the call with algorithm "auto".

    Raises
    ------
    UsageError
        If there is no such vector.
    """
    service = comm.membership.service
    nnz = argument.whole("explain", "nnz", nnz)
    length = argument.whole("explain", "length", length)
    width = argument.whole("explain", "width", width, least=1)
    if dtype.name not in TYPES:
        raise UsageError("explain", f"values of {dtype}", f"one of {', '.join(TYPES)}")
    problem = _foretold_problem(service, nnz, length, width * dtype.itemsize)
    slower = rounded(slowness(open_plans_of(service).kernel_s_per_byte))
    name = _chosen(service, problem, slower)
    prices = pair_prices(problem, slower)
    candidates = {one: Candidate(price) for one, price in prices.items()}
    if DENSE not in prices:
        candidates[DENSE] = Candidate(objection=f"vectors of more than {DENSEST >> 30} GiB")
    if service.family.deterministic:
        reason = "deterministic: operands are added in rank order"
        candidates |= {one: Candidate(objection=reason) for one in candidates if one != name}
    sent: dict[str, int] = {}
    if name != DENSE:
        sent = cost(Plan(problem, find(_OPERATION, name))).bytes_per_level
    nbytes = nnz * problem.itemsize
    return Explanation(_OPERATION, nbytes, name, prices[name], sent, candidates)


def _foretold_problem(service: Service, nnz: int, length: int, row_bytes: int) -> Problem:
    """Describe a call as `problem_of` would, without the world that calls need."""
    unit = 1 << max(nnz.bit_length() - 2, 0)
    return Problem(
        _OPERATION,
        service.chooser.topology,
        count=min(-(-nnz // unit) * unit, length),
        itemsize=row_bytes,
        commutative=not service.family.deterministic,
        length=length,
    )
