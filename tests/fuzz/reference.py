"""What a call must leave behind: mpi4py's own call, or arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from tests.fuzz.buffers import Part, Side
from tests.fuzz.elements import KINDS, Kind, combined, divide
from tests.fuzz.shapes import IN_PLACE, REDUCING, Step, arguments, result_entries

Pair = tuple[Any, Any]


def refer(
    plain: MPI.Intracomm, step: Step, shapes: Pair, sides: Pair, ops: dict[str, MPI.Op]
) -> None:
    """Do a call on a communicator of mpi4py, into memory of its own.

    Parameters
    ----------
    plain : MPI.Intracomm
        Of the same ranks.
    step : dict
        The call.
    shapes : tuple
        What this rank sends and takes.
    sides : tuple of Side or None
        The memory.
    ops : dict
        Reductions by name.
    """
    kind = KINDS[step["kind"]]
    if step["op"] == "reduce_scatter" and IN_PLACE in shapes and MPI.get_vendor()[0] == "MPICH":
        raise ValueError("MPICH 5.0 ends the job where a block and its place overlap")
    op = ops.get(step["reduce"] or "", MPI.SUM)
    if step["reduce"] == "cr.MEAN":
        op = MPI.SUM
    if step["op"] in REDUCING and not kind.mpi:
        _by_hand(plain, step, sides)
    else:
        parts = [_message(*one, step, kind) for one in zip(shapes, sides, strict=True)]
        given, named = arguments(step, plain.size, parts[0][0], parts[1][0], op)
        method = getattr(MPI.Intracomm, step["op"].capitalize())
        method(plain, *given, **named)
        for (_, copy), side in zip(parts, sides, strict=True):
            if copy is not None:
                side.entries[...] = copy
    if step["reduce"] == "cr.MEAN":
        taken = sides[1]
        if taken is not None:
            divide(taken.entries[: result_entries(step, plain.rank, plain.size)], plain.size)


def _message(shape: Any, side: Side | None, step: Step, kind: Kind) -> tuple[Any, Any]:
    """Give what mpi4py takes for a side, and the copy it works on if it takes no such array."""
    if side is None or shape == IN_PLACE:
        return (MPI.IN_PLACE if shape == IN_PLACE else None), None
    reduces = step["op"] in REDUCING
    if kind.mpi and not side.gaps and not reduces:
        return side.spec, None
    copy = np.ascontiguousarray(side.entries)
    if reduces:  # a type for both sides: mpi4py knows those of NumPy, ctypes, array apart
        return [copy, _type(kind)], copy
    return _as_bytes(shape, copy, kind), copy


def _type(kind: Kind) -> MPI.Datatype:
    found: MPI.Datatype = eval(kind.mpi, {"MPI": MPI})
    return found


def _as_bytes(shape: Part, copy: Any, kind: Kind) -> Any:
    """Give a message of bytes."""
    raw, unit = copy.view(np.uint8), kind.nbytes
    if shape.counts is None or shape.displs is None:
        return [raw, shape.block * unit, MPI.BYTE]
    counts = [count * unit for count in shape.counts]
    return [raw, (counts, [at * unit for at in shape.displs]), MPI.BYTE]


def _by_hand(plain: MPI.Intracomm, step: Step, sides: Pair) -> None:
    """Reduce in NumPy what every rank has."""
    sent, taken = sides
    mine = (taken if sent is None else sent).entries
    dtype = KINDS[step["kind"]].dtype
    everything = plain.allgather(np.ascontiguousarray(mine).view(np.uint8).tobytes())
    parts = [np.frombuffer(one, np.uint8).view(dtype) for one in everything]
    rank, count = plain.rank, result_entries(step, plain.rank, plain.size)
    if step["op"] in ("scan", "exscan"):
        parts = parts[: rank + (step["op"] == "scan")]
    if not count or not parts or taken is None:
        return
    start = 0
    if step["op"] == "reduce_scatter_block":
        start = rank * count
    elif step["op"] == "reduce_scatter":
        lengths = step["counts"]
        start = sum(lengths[at % len(lengths)] for at in range(rank))
    length = len(parts[0])
    total = combined(step["reduce"], [part[:length] for part in parts])
    taken.entries[:count] = total[start : start + count]
