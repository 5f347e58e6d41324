"""What each rank passes to each operation, and what the arguments are."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from tests.fuzz.buffers import GUARD, SPREAD, Part
from tests.fuzz.elements import KINDS

Step = dict[str, Any]

#: Operations by what they take beside their messages.
REDUCING = (
    "allreduce", "reduce", "reduce_scatter_block", "reduce_scatter", "scan", "exscan",
)  # fmt: skip
ROOTED = ("bcast", "reduce", "gather", "gatherv", "scatter", "scatterv")
SIZED = ("reduce_scatter", "allgatherv", "gatherv", "scatterv", "alltoallv")
OPERATIONS = (
    "barrier", "bcast", "reduce", "allreduce", "reduce_scatter_block", "reduce_scatter",
    "allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv", "alltoall",
    "alltoallv", "scan", "exscan",
)  # fmt: skip
IN_PLACE = "IN_PLACE"
Shape = Part | str | None


def _vector(counts: list[int], gap: int) -> Part:
    """Lay blocks out: side by side, with gaps, or the last one first."""
    order = range(len(counts)) if gap < 2 else range(len(counts) - 1, -1, -1)
    displs, at = [0] * len(counts), 0
    for rank in order:
        displs[rank] = at
        at += counts[rank] + (1 if gap else 0)
    return Part(at, max(counts, default=0), counts, displs)


def shapes(step: Step, rank: int, size: int) -> tuple[Shape, Shape]:
    """Say what a rank sends and receives.

    Parameters
    ----------
    step : dict
        The call.
    rank, size : int
        Of its communicator.

    Returns
    -------
    tuple
        A `Part`, `IN_PLACE` or None for each side.
    """
    operation, n, gap = step["op"], step["count"], step["gap"]
    counts = [step["counts"][at % len(step["counts"])] for at in range(size)]
    at_root = rank == step["root"] % size
    one, all_of = Part(n, n), Part(n * size, n)
    mine = Part(counts[rank], counts[rank])
    sent: Shape
    taken: Shape
    match operation:
        case "barrier":
            return None, None
        case "bcast":
            return None, one
        case "allreduce" | "scan" | "exscan" | "reduce":
            sent, taken = one, one
        case "reduce_scatter_block":
            sent, taken = all_of, one
        case "reduce_scatter":
            sent, taken = Part(sum(counts), sum(counts)), mine
        case "allgather" | "gather":
            sent, taken = one, all_of
        case "allgatherv" | "gatherv":
            sent, taken = mine, _vector(counts, gap)
        case "scatter":
            sent, taken = all_of, one
        case "scatterv":
            sent, taken = _vector(counts, gap), mine
        case "alltoall":
            sent, taken = all_of, all_of
        case "alltoallv":
            sent, taken = _exchanged(step, rank, size)
        case _:
            raise AssertionError(operation)
    return _placed(step, at_root, sent, taken)


def _exchanged(step: Step, rank: int, size: int) -> tuple[Part, Part]:
    """Say what a rank exchanges: of a call in place, as much both ways."""
    twice = 1 if step["place"] else 2
    lengths = step["counts"]

    def between(source: int, target: int) -> int:
        number: int = lengths[(source + twice * target) % len(lengths)]
        return number

    sent = _vector([between(rank, other) for other in range(size)], step["gap"])
    return sent, _vector([between(other, rank) for other in range(size)], step["gap"])


def _placed(step: Step, at_root: bool, sent: Shape, taken: Shape) -> tuple[Shape, Shape]:
    """Put what a call in place, or one to a root, does not need."""
    operation, place = step["op"], step["place"]
    if operation in ("scatter", "scatterv"):
        if not at_root:
            return (sent if step["given"] else None), taken
        return sent, (IN_PLACE if place else taken)
    if operation in ("reduce", "gather", "gatherv"):
        if not at_root:
            return sent, (taken if step["given"] else None)
        return (IN_PLACE if place else sent), taken
    if place:
        in_both = operation in ("reduce_scatter", "reduce_scatter_block")
        return IN_PLACE, (sent if in_both else taken)
    return sent, taken


def room_for(step: Step, side: str, size: int) -> int:
    """Give bytes that hold a side of a call on any rank of a communicator of ``size``."""
    kind, given = KINDS[step["kind"]], step[side]
    most: int = max(step["count"], *step["counts"], 1) + 1
    spread = SPREAD.get(given["form"], (1, ""))[0]
    return most * size * kind.nbytes * spread + 2 * GUARD + int(given["shift"])


def result_entries(step: Step, rank: int, size: int) -> int:
    """Count the elements of a reduction's result on a rank, from the first one on."""
    if step["op"] == "reduce_scatter":
        number: int = step["counts"][rank % len(step["counts"])]
        return number
    if step["op"] == "reduce":
        return step["count"] if rank == step["root"] % size else 0
    if step["op"] == "exscan":
        return step["count"] if rank else 0
    count: int = step["count"]
    return count


def method_of(step: Step) -> str:
    """Name the method of a call."""
    name: str = step["op"].capitalize()
    return {"": name, "I": f"I{step['op']}", "_init": f"{name}_init"}[step["mode"]]


def arguments(
    step: Step, size: int, sent: Any, taken: Any, op: MPI.Op | Any
) -> tuple[list[Any], dict[str, Any]]:
    """Give the arguments of a call, some by name where the step says so."""
    operation, root = step["op"], step["root"] % size
    if operation == "barrier":
        return [], {}
    messages = [taken] if operation == "bcast" else [sent, taken]
    more: dict[str, Any] = {}
    if operation == "reduce_scatter":
        more["recvcounts"] = [step["counts"][at % len(step["counts"])] for at in range(size)]
    if operation in REDUCING:
        more["op"] = op
    if operation in ROOTED:
        more["root"] = root
    return (messages, more) if step["named"] else ([*messages, *more.values()], {})
