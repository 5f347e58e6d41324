"""Plans without ranks: describe a collective on any topology and choose for it.

The second part measures, at init and within a budget, the numbers that the
choosers of all ranks agree on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np

from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.builders.catalogue import algorithms, find
from closeranks.collectives.plans.collective import OPERATIONS, ROOTED, VECTOR, Problem
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.selection.chooser import Chooser
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.comms import argument
from closeranks.comms.topology.topology import Topology
from closeranks.comms.wait import crowding
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI


#: Names of reductions that ``op=`` takes; all of them commute.
OPS = ("sum", "prod", "min", "max", "land", "lor", "lxor", "band", "bor", "bxor", "mean")


def plan(
    operation: str,
    topology: Topology,
    *,
    algorithm: str = "auto",
    count: int | None = None,
    nbytes: int | None = None,
    dtype: str = "float32",
    op: str = "sum",
    counts: Sequence[int] | Sequence[Sequence[int]] | None = None,
    root: int = 0,
) -> Plan:
    """Describe a collective on a topology; local, communicates nothing.

    Parameters
    ----------
    operation : str
        For instance ``"allreduce"``, see `algorithms`.
    topology : Topology
        Where the ranks sit; it may be made up.
    algorithm : str
        A name from `algorithms`, or "auto" for the cheapest by `cost`.
    count : int, optional
        Elements as MPI counts them: of the vector (allreduce, reduce, bcast,
        scan, exscan) or of one rank's block (the others).
    nbytes : int, optional
        The same in bytes.
    dtype : str
        NumPy name of the element, or "bfloat16".
    op : str
        A reduction, or "ordered" for one with operands that may not change places.
    counts : sequence, optional
        v-operations: elements of each rank's block, shape (size,); alltoallv:
        shape (size, size), row = sender.
    root : int
        Root of rooted operations.

    Returns
    -------
    Plan
        Lazy: nothing is built until its steps are asked for.

    Raises
    ------
    UsageError
        With the value and the choices.
    """
    itemsize = argument.element_type("plan", dtype).itemsize
    argument.instance("plan", "topology", topology, Topology, "give a closeranks.Topology")
    _check(operation, op)
    limit = topology.size if operation in ROOTED else 1
    at = argument.whole("plan", f"root of {operation}", root, below=limit)
    number = _count(operation, count, nbytes, itemsize, counts is not None)
    if number * topology.size * itemsize >= argument.MOST:
        told = f"{number} elements of {itemsize} B over {topology.size} ranks"
        raise UsageError("plan", told, f"stay below {argument.MOST} B in all")
    sizes = _counts(operation, counts, topology.size)
    problem = Problem(operation, topology, number, sizes, at, itemsize, op != "ordered")
    return Plan(problem, _algorithm(problem, algorithm))


def _algorithm(problem: Problem, name: str) -> Algorithm:
    operation = problem.operation
    argument.instance("plan", "algorithm", name, str,
                      f"one of auto, {', '.join(algorithms(operation))}")  # fmt: skip
    if name == "auto":
        name = Chooser(problem.topology).cheapest(problem)
    chosen = find(operation, name)
    objection = chosen.objection(problem)
    if objection:
        raise UsageError(
            "plan",
            f"{name} cannot do this {operation}: {objection}",
            f"one of auto, {', '.join(algorithms(operation))}",
        )
    return chosen


def _check(operation: str, op: str) -> None:
    if not isinstance(operation, str) or operation not in OPERATIONS:
        problem = f"operation {argument.shown(operation)}"
        raise UsageError("plan", problem, f"one of {', '.join(OPERATIONS)}")
    if not isinstance(op, str) or op not in (*OPS, "ordered"):
        raise UsageError("plan", f"op {argument.shown(op)}", f"one of {', '.join(OPS)}, ordered")


def _count(
    operation: str, count: int | None, nbytes: int | None, itemsize: int, has_counts: bool
) -> int:
    if count is not None and nbytes is not None:
        raise UsageError("plan", f"count={count} and nbytes={nbytes}", "give one of them")
    if count is not None:
        count = argument.whole("plan", "count", count)
    if nbytes is not None:
        count, rest = divmod(argument.whole("plan", "nbytes", nbytes), itemsize)
        if rest:
            raise UsageError(
                "plan", f"nbytes={nbytes}", f"a multiple of the element's {itemsize} bytes"
            )
    if has_counts and count:
        raise UsageError("plan", "counts and a single count", "give one of them")
    if operation in (*VECTOR, "alltoallv") and not has_counts:
        raise UsageError("plan", f"{operation} without counts", "give counts=, one a rank")
    if count is None and not has_counts and operation != "barrier":
        raise UsageError("plan", f"{operation} without a size", "give count= or nbytes=")
    return 0 if operation == "barrier" else count or 0


def _counts(
    operation: str, counts: Sequence[int] | Sequence[Sequence[int]] | None, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    if counts is None:
        return None
    if operation not in (*VECTOR, "alltoallv"):
        raise UsageError("plan", f"counts for {operation}", "give count= or nbytes=")
    try:
        found = np.asarray(counts)
    except ValueError:
        problem = f"counts are {argument.shown(counts)}"
        raise UsageError("plan", problem, "give as many for each rank") from None
    shape = (size, size) if operation == "alltoallv" else (size,)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise UsageError(
            "plan", f"counts of shape {found.shape}, {found.dtype}", f"integers of shape {shape}"
        )
    if found.size and not 0 <= found.min() <= found.max() < argument.MOST:
        problem = f"counts from {found.min()} to {found.max()}"
        raise UsageError("plan", problem, f"at least 0 each, below {argument.MOST}")
    return found.astype(np.int64)


#: Time of the Python interpreter for one step of a plan with a core of its own.
STEP_S = 6e-6
#: Sizes of the library's all-reduce that are timed, bytes.  The last one where ranks sit on
#: more than one node: a slow wire takes shorter messages for a while without delay.
SMALL, LARGE, WIDE = 8, 16384, 1 << 18
#: Such a call is repeated if it takes less, in seconds: the first one opens connections.
_BRIEF_S = 10e-3


def calibrate(comm: MPI.Intracomm, *, is_wide: bool) -> tuple[NativeModel, Speed]:
    """Time a few of the library's all-reduces, a copy and a reduction.

    Called by every rank of ``comm``, with an open world; about 40 ms on a slow
    network.

    Parameters
    ----------
    comm : MPI.Intracomm
        The communicator to time the library on.
    is_wide : bool
        Whether ranks sit on more than one node.

    Returns
    -------
    native : NativeModel
        The same on every rank.
    speed : Speed
        The same on every rank: the slowest rank's.
    """
    from mpi4py import MPI

    measured = np.array(
        [
            _native_s(comm, SMALL, calls=4),
            _native_s(comm, LARGE, calls=3),
            *_memory_s(),
            STEP_S * crowding(),
            _native_s(comm, WIDE, calls=1, warms=0) if is_wide else 0.0,
        ]
    )
    comm.Allreduce(MPI.IN_PLACE, measured, op=MPI.MAX)
    small_s, large_s, copy_s, reduce_s, step_s, wide_s = measured.tolist()
    if is_wide and wide_s < _BRIEF_S:
        again = np.array([_native_s(comm, WIDE, calls=2, warms=0)])
        comm.Allreduce(MPI.IN_PLACE, again, op=MPI.MAX)
        wide_s = float(again[0])
    slopes = (large_s - small_s) / (LARGE - SMALL), (wide_s - small_s) / (WIDE - SMALL)
    slope = max(*slopes, 0.0)
    return NativeModel(small_s, slope), Speed(step_s, reduce_s, copy_s)


def _native_s(comm: MPI.Intracomm, nbytes: int, *, calls: int, warms: int = 1) -> float:
    """Best time of an all-reduce, after some that warm up."""
    from mpi4py import MPI

    x, y = np.zeros(nbytes, dtype=np.uint8), np.empty(nbytes, dtype=np.uint8)
    best = float("inf")
    for call in range(calls):
        started = time.perf_counter()
        comm.Allreduce(x, y, op=MPI.BOR)
        if call >= warms:
            best = min(best, time.perf_counter() - started)
    return best


def _memory_s() -> tuple[float, float]:
    """Seconds a byte to copy and to add, on 256 KiB."""
    x, y = np.zeros(1 << 15), np.ones(1 << 15)
    return _per_byte(lambda: np.copyto(y, x)), _per_byte(lambda: np.add(x, y, out=y))


def _per_byte(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best / (1 << 18)
