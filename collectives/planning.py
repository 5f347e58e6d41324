"""Plans without ranks: describe a collective on any topology and choose for it."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np

from closeranks.collectives.catalogue import algorithms, find
from closeranks.collectives.choose import Chooser
from closeranks.collectives.plan import Algorithm, Plan
from closeranks.collectives.problem import OPERATIONS, REDUCING, ROOTED, VECTOR, Problem
from closeranks.comms.topology import Topology
from closeranks.errors import UsageError

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
        scan, exscan) or of one rank's block (the others).  Default 0.
    nbytes : int, optional
        The same in bytes.
    dtype : str
        NumPy name of the element, or "bfloat16".
    op : str
        A reduction, or "ordered" for one whose operands may not change places.
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
    itemsize = _itemsize(dtype)
    _check(operation, topology, op, root)
    number = _count(operation, count, nbytes, itemsize, counts is not None)
    sizes = _counts(operation, counts, topology.size)
    problem = Problem(operation, topology, number, sizes, root, itemsize, op != "ordered")
    return Plan(problem, _algorithm(problem, algorithm))


def _itemsize(dtype: str) -> int:
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        raise UsageError("plan", f"dtype {dtype!r}", "a NumPy name or bfloat16") from None


def _algorithm(problem: Problem, name: str) -> Algorithm:
    operation = problem.operation
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


def _check(operation: str, topology: Topology, op: str, root: int) -> None:
    if operation not in OPERATIONS:
        raise UsageError("plan", f"operation {operation!r}", f"one of {', '.join(OPERATIONS)}")
    if operation in REDUCING and op not in (*OPS, "ordered"):
        raise UsageError("plan", f"op {op!r}", f"one of {', '.join(OPS)}, ordered")
    limit = topology.size if operation in ROOTED else 1
    if not 0 <= root < limit:
        raise UsageError("plan", f"root {root} of {operation}", f"0 <= root < {limit}")


def _count(
    operation: str, count: int | None, nbytes: int | None, itemsize: int, has_counts: bool
) -> int:
    if count is not None and nbytes is not None:
        raise UsageError("plan", f"count={count} and nbytes={nbytes}", "give one of them")
    if has_counts and (count or nbytes):
        raise UsageError("plan", "counts and a single count", "give one of them")
    if nbytes is not None:
        count, rest = divmod(nbytes, itemsize)
        if rest:
            raise UsageError(
                "plan", f"nbytes={nbytes}", f"a multiple of the element's {itemsize} bytes"
            )
    if count is not None and count < 0:
        raise UsageError("plan", f"count={count}", "at least 0")
    if operation in (*VECTOR, "alltoallv") and not has_counts:
        raise UsageError("plan", f"{operation} without counts", "give counts=, one a rank")
    return 0 if operation == "barrier" else count or 0


def _counts(
    operation: str, counts: Sequence[int] | Sequence[Sequence[int]] | None, size: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    if counts is None:
        return None
    if operation not in (*VECTOR, "alltoallv"):
        raise UsageError("plan", f"counts for {operation}", "give count= or nbytes=")
    found = np.asarray(counts)
    shape = (size, size) if operation == "alltoallv" else (size,)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise UsageError(
            "plan", f"counts of shape {found.shape}, {found.dtype}", f"integers of shape {shape}"
        )
    if found.size and found.min() < 0:
        raise UsageError("plan", f"counts with {found.min()}", "at least 0 each")
    return found.astype(np.int64)
