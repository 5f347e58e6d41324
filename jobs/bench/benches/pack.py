"""The benchmark ``pack``: data with gaps, copied side by side in three ways.

Every rank packs for itself, all at once; nothing is sent.  Our way is chosen
before, as MPI's datatype is committed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import Benchmark, one_item, own_table
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import (
    Call,
    Effort,
    Timing,
    agree,
    bandwidth,
    batch,
    estimate,
)

if TYPE_CHECKING:
    from mpi4py import MPI

Row = dict[str, Any]
Array = NDArray[Any]

HEAD = (
    "#" + "face".rjust(21) + "bytes".rjust(9) + "ours us".rjust(10) + "NumPy us".rjust(10)
    + "MPI us".rjust(10) + "vs better".rjust(10) + "vs MPI".rjust(8) + "wrong".rjust(7)
)  # fmt: skip
_SIDE = 256
_COLD_BYTES = 64 << 20
_ROUNDS = 31
_SAMPLE_S = 5e-4


@dataclass(frozen=True)
class PackShape:
    """A part of an array of float32.

    Parameters
    ----------
    face : str
        Its name in the table.
    sizes, subsizes, starts : tuple of int
        Shape of the array, shape of the part, and its first index.
    unpacked : bool
        Whether packed data is put there, instead of taken.
    cold : bool
        Whether the caches are swept before every call, as the next step of a
        simulation does between two exchanges.
    """

    face: str
    sizes: tuple[int, ...]
    subsizes: tuple[int, ...]
    starts: tuple[int, ...]
    unpacked: bool = False
    cold: bool = False

    def view(self, array: Array) -> Array:
        """Cut the part out of an array."""
        pairs = zip(self.starts, self.subsizes, strict=True)
        return array[tuple(slice(start, start + size) for start, size in pairs)]


def shapes() -> tuple[PackShape, ...]:
    """List what is measured: it is the same everywhere.

    Returns
    -------
    tuple of PackShape
        Faces of a cube, vectors with gaps as long as their blocks, parts of a
        matrix.
    """
    cube = (_SIDE,) * 3
    faces = [
        PackShape(f"axis {axis}", cube, tuple(1 if axis == i else _SIDE for i in range(3)),
              tuple(7 if axis == i else 0 for i in range(3)))
        for axis in range(3)
    ]  # fmt: skip
    vectors = [
        PackShape(f"blocks of {4 * words} B", (65536 // words, 2 * words), (65536 // words, words),
              (0, 0))
        for words in (1, 2, 4, 8, 16)
    ]  # fmt: skip
    parts = [
        PackShape(f"{rows} x {columns} of a matrix", (1024, 1024), (rows, columns), (12, 20))
        for rows, columns in ((512, 512), (1000, 100), (1000, 6))
    ]
    cold = [replace(one, face=f"{one.face}, cold", cold=True) for one in faces]
    back = [replace(one, face=f"{one.face}, unpack", unpacked=True) for one in faces]
    return (*faces, *cold, *back, *vectors, *parts)


def measure_packs(session: Session) -> Iterator[Row]:
    """Measure all shapes; collective.

    Parameters
    ----------
    session : Session
        Where, and how long.

    Yields
    ------
    dict
        Rows: times are those of our way, the slowest rank's.
    """
    for shape in shapes():
        yield _measured(session, shape)


def as_line(row: Row) -> str:
    """Write a row below `HEAD`.

    Parameters
    ----------
    row : dict
        One of `measure_packs`.

    Returns
    -------
    str
        Without a comment sign.
    """
    times = (short(row[f"{side}_us"]).rjust(10) for side in ("ours", "numpy", "native"))
    ratios = f"{row['speedup_better']:.2f}x".rjust(10) + f"{row['speedup']:.2f}x".rjust(8)
    wrong = "-" if row["wrong"] is None else str(row["wrong"])
    face: str = row["face"]
    return (
        face.rjust(22) + str(row["size_bytes"]).rjust(9) + "".join(times) + ratios
        + wrong.rjust(7)
    )  # fmt: skip


def _measured(session: Session, shape: PackShape) -> Row:
    """Check and time the three ways of one shape."""
    array = np.arange(np.prod(shape.sizes), dtype=np.float32).reshape(shape.sizes)
    view = shape.view(array)
    data = np.empty(view.shape, np.float32)
    datatype = _datatype(shape)
    sides = _sides(shape, array, view, data, datatype)
    wrong = session.plain.allreduce(_wrong(shape, view, data, sides["ours"]))
    timings = _timed(session, shape, sides)
    datatype.Free()
    us = {side: timing.p50_us for side, timing in timings.items()}
    return {
        **describe(session, "pack", view.nbytes, timings["ours"]),
        **bandwidth(view.nbytes, us["ours"], 1.0),
        "algorithm": "auto",
        "dtype": "float32",
        "wrong": wrong if session.request.check else None,
        "face": shape.face,
        "ours_us": us["ours"],
        "numpy_us": us["numpy"],
        "native_us": us["native"],
        "speedup": us["native"] / us["ours"],
        "speedup_better": min(us["native"], us["numpy"]) / us["ours"],
    }


def _datatype(shape: PackShape) -> MPI.Datatype:
    """Describe a shape to MPI, as a program would."""
    from mpi4py import MPI

    return MPI.FLOAT.Create_subarray(shape.sizes, shape.subsizes, shape.starts).Commit()


def _sides(
    shape: PackShape, array: Array, view: Array, data: Array, datatype: MPI.Datatype
) -> dict[str, Call]:
    """Bind the three ways to their memory."""
    from mpi4py import MPI

    from closeranks.comms.buffers import packing

    own, flat = MPI.COMM_SELF, data.reshape(-1).view(np.uint8)
    packer = packing.packer(view.shape, view.strides, view.itemsize)
    if shape.unpacked:
        return {
            "ours": lambda: packer.scatter(view, flat),
            "numpy": lambda: np.copyto(view, data),
            "native": lambda: datatype.Unpack(flat, 0, array, own),
        }
    return {
        "ours": lambda: packer.gather(flat, view),
        "numpy": lambda: np.copyto(data, view),
        "native": lambda: datatype.Pack(array, flat, 0, own),
    }


def _wrong(shape: PackShape, view: Array, data: Array, call: Callable[[], object]) -> int:
    """Count elements that our way puts elsewhere than NumPy does."""
    given, taken = (data, view) if shape.unpacked else (view, data)
    given[...] = np.arange(given.size).reshape(given.shape)
    taken[...] = -1
    call()
    return int(np.count_nonzero(taken != given))


def _timed(session: Session, shape: PackShape, sides: dict[str, Call]) -> dict[str, Timing]:
    """Time the ways in turns, in samples too short to be interrupted often."""
    slowest = max(estimate(session.plain, call) for call in sides.values())
    calls = 1 if shape.cold else max(1, int(_SAMPLE_S / slowest))
    rounds = _rounds(session.request.effort, calls, slowest * calls * len(sides))
    swept = np.zeros(_COLD_BYTES if shape.cold else 0, np.uint8)
    samples: dict[str, list[float]] = {side: [] for side in sides}
    names = list(sides)
    for i in range(rounds):
        turn = i % len(names)
        for side in names[turn:] + names[:turn]:
            swept += 1
            samples[side] += batch(session.plain, sides[side], calls)
    return {side: agree(session.plain, samples[side], rounds * calls, calls > 1) for side in names}


def _rounds(effort: Effort, calls: int, round_s: float) -> int:
    """Count the samples a way: a twentieth of the budget a shape, within bounds."""
    if effort.iterations is not None:
        return max(-(-effort.iterations // calls), 3)
    return min(max(int(effort.budget_s / 20 / round_s), _ROUNDS), 10 * _ROUNDS)


BENCHMARKS = (
    Benchmark(
        "pack",
        items=one_item(0),
        measure=lambda session, _item: measure_packs(session),
        lines=own_table(lambda: HEAD, as_line),
    ),
)
