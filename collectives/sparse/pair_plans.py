"""Plans of pairs, run for the pairs of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.builders.sparse_allreduce import regions
from closeranks.collectives.dispatch.open_plans import open_plans_of
from closeranks.collectives.pairs.pair_message import (
    HEADER_BYTES,
    IndexForm,
    PairHeader,
    header_of,
    indices_of,
    kind_of,
    values_of,
    write_message,
)
from closeranks.collectives.plans.collective import Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.comms.result_memory import RESULTS

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.sparse.canonical_pairs import CanonicalPairs

Ints = NDArray[np.int64]


def problem_of(service: Service, operation: str, pairs: CanonicalPairs, total: int) -> Problem:
    """Describe a call, as all ranks know it; close counts share a choice.

    Collective at the first call of a communicator.

    Parameters
    ----------
    service : Service
        Of the communicator.
    operation : str
        A key of `closeranks.collectives.builders.catalogue.SPARSE`.
    pairs : CanonicalPairs
        Of this rank.
    total : int
        Pairs of all ranks.
    """
    mean = -(-total // service.size)
    unit = 1 << max(mean.bit_length() - 2, 0)
    return Problem(
        operation,
        service.world.topology,
        count=min(-(-mean // unit) * unit, pairs.length),
        itemsize=pairs.row_bytes,
        commutative=not service.family.deterministic,
        length=pairs.length,
    )


def regions_of(service: Service) -> int:
    """Return into how many regions calls cut the index space; the same for all calls.

    Collective at the first call of a communicator.
    """
    is_free = not service.family.deterministic
    return regions(Problem("allreduce_sparse", service.world.topology, 0, commutative=is_free))


def run_pairs(
    service: Service, problem: Problem, algorithm: Algorithm, pairs: CanonicalPairs, cuts: Ints
) -> tuple[Ints, NDArray[Any]]:
    """Run a plan of pairs.

    Collective.

    Parameters
    ----------
    service : Service
        Of the communicator.
    problem : Problem
        The call.
    algorithm : Algorithm
        Which plan.
    pairs : CanonicalPairs
        Of this rank.
    cuts : ndarray of int64
        Where the regions begin, see `agreed_cuts`.

    Returns
    -------
    indices : ndarray of int64
        Ascending, each once.
    values : ndarray
        One after the other; in the same memory as the indices.
    """
    kind = kind_of(pairs.op, pairs.values.dtype)
    start, count = HEADER_BYTES + cuts.nbytes, len(pairs.indices)
    header = PairHeader(
        IndexForm.WHOLE, count, 0, pairs.length, kind, pairs.width, start, 8 * count
    )
    message = RESULTS.array(header.nbytes, np.uint8)
    write_message(message, header, pairs.indices, pairs.values)
    message[HEADER_BYTES:start].view(np.int64)[:] = cuts
    # Steps depend on nothing else of the problem.
    key = (problem.operation, algorithm.name, problem.commutative)
    output = open_plans_of(service).run(key, lambda: Plan(problem, algorithm), message)
    found = header_of(output)
    return indices_of(output, found), values_of(output, found)
