"""The benchmark ``halo``: ghost cells of a cube, cut along one axis.

The library's side is the better of two programs that users write by hand, both
with persistent requests: faces copied into buffers of their own, and subarray
types on the array itself.  The size is that of the whole cube.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from closeranks.jobs.bench.benches.point_to_point import describe
from closeranks.jobs.bench.benches.registration import (
    Benchmark,
    Item,
    TableColumn,
    an_item_a_size,
)
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session
from closeranks.jobs.bench.measuring.timing import Call, bandwidth, clock, estimate

if TYPE_CHECKING:
    from mpi4py import MPI

Row = dict[str, Any]
Array = NDArray[np.float64]


def measure_halo(session: Session, nbytes: int) -> Iterator[Row]:
    """Measure the exchange of one cube, cut along its first and its last axis.

    Collective.

    Parameters
    ----------
    session : Session
        Where, and how long.
    nbytes : int
        Of the whole cube of doubles, at most.

    Yields
    ------
    dict
        A row an axis, the same on every rank.
    """
    side = max(1, round((nbytes / 8) ** (1 / 3)))
    side -= side**3 * 8 > nbytes and side > 1
    for axis in (0, 2):
        yield _measured(session, side, axis)


def _measured(session: Session, side: int, axis: int) -> Row:
    from closeranks.partitioning import Halo, Layout, Mesh, Split

    mesh = Mesh({"rank": session.ranks})
    layout = Layout((side,) * 3, [Split(axis)], mesh=mesh)
    with Halo(session.comm, layout, [1 if a == axis else 0 for a in range(3)]) as halo:
        mine, packed, typed = (_filled(halo, layout, session.plain) for _ in range(3))
        copies, types = _Copies(session.plain, packed, axis), _Types(session.plain, typed, axis)
        sides: dict[str, Call] = {
            "ours": lambda: halo.exchange(mine),
            "packed": copies.exchange,
            "subarray": types.exchange,
        }
        seconds = [estimate(session.plain, call) for call in sides.values()]
        wrong = sum(int(np.count_nonzero(one != mine)) for one in (packed, typed))
        faces = sum(cut.nbytes for cut in (*copies.ghosts,))
        timings = clock(session.plain, sides, session.request.effort.schedule(seconds, faces))
        copies.free()
        types.free()
    total = session.plain.allreduce(faces)
    us = {name: timing.p50_us for name, timing in timings.items()}
    native = min(us["packed"], us["subarray"])
    return {
        **describe(session, "halo", side**3 * 8, timings["ours"]),
        **bandwidth(total // session.ranks, us["ours"], 1.0),
        "algorithm": f"axis {axis}",
        "dtype": "float64",
        "wrong": session.plain.allreduce(wrong) if session.request.check else None,
        "packed_us_p50": us["packed"],
        "subarray_us_p50": us["subarray"],
        "native_us_p50": native,
        "speedup": native / us["ours"],
        "bytes_received": total,
        "bytes_least": 2 * (session.ranks - 1) * side**2 * 8,
    }


def _filled(halo: Any, layout: Any, plain: MPI.Intracomm) -> Array:
    """Make a padded part whose cells are their numbers in the cube."""
    array: Array = halo.empty(np.float64)
    array[...] = -1.0
    cells = np.arange(np.prod(layout.global_shape), dtype=np.float64).reshape(layout.global_shape)
    halo.interior(array)[...] = cells[layout.box(plain.Get_rank())]
    return array


@dataclass(frozen=True)
class _Neighbour:
    """A rank beside this one, and the indices of faces along the axis."""

    rank: int
    inner: int
    ghost: int


def _neighbours(plain: MPI.Intracomm) -> list[_Neighbour]:
    """Give the ranks before and after this one."""
    rank, ranks = plain.Get_rank(), plain.Get_size()
    both = _Neighbour(rank - 1, 1, 0), _Neighbour(rank + 1, -2, -1)
    return [one for one in both if 0 <= one.rank < ranks]


class _Copies:
    """Persistent requests over faces that are copied before and after."""

    def __init__(self, plain: MPI.Intracomm, array: Array, axis: int) -> None:
        self._requests: list[MPI.Prequest] = []
        self._out: list[tuple[Array, Array]] = []
        self._into: list[tuple[Array, Array]] = []
        across = np.moveaxis(array, axis, 0)
        for one in _neighbours(plain):
            sent, received = (np.empty(across.shape[1:]) for _ in range(2))
            self._requests.append(plain.Recv_init(received, one.rank, 7))
            self._requests.append(plain.Send_init(sent, one.rank, 7))
            self._out.append((sent, across[one.inner]))
            self._into.append((across[one.ghost], received))

    @property
    def ghosts(self) -> list[Array]:
        """The ghost faces of the array."""
        return [face for face, _ in self._into]

    def exchange(self) -> None:
        """Fill the ghost faces."""
        from mpi4py import MPI

        for buffer, face in self._out:
            np.copyto(buffer, face)
        MPI.Prequest.Startall(self._requests)
        MPI.Request.Waitall(self._requests)
        for face, buffer in self._into:
            np.copyto(face, buffer)

    def free(self) -> None:
        """Free the requests."""
        for request in self._requests:
            request.Free()


class _Types:
    """Persistent requests over subarray types of the array itself."""

    def __init__(self, plain: MPI.Intracomm, array: Array, axis: int) -> None:
        from mpi4py import MPI

        self._requests: list[MPI.Prequest] = []
        self._types: list[MPI.Datatype] = []
        lengths = [1 if a == axis else n for a, n in enumerate(array.shape)]

        def face(index: int) -> MPI.Datatype:
            starts = [index % array.shape[axis] if a == axis else 0 for a in range(3)]
            made = MPI.DOUBLE.Create_subarray(array.shape, lengths, starts).Commit()
            self._types.append(made)
            return made

        for one in _neighbours(plain):
            self._requests.append(plain.Recv_init([array, 1, face(one.ghost)], one.rank, 8))
            self._requests.append(plain.Send_init([array, 1, face(one.inner)], one.rank, 8))

    def exchange(self) -> None:
        """Fill the ghost faces."""
        from mpi4py import MPI

        MPI.Prequest.Startall(self._requests)
        MPI.Request.Waitall(self._requests)

    def free(self) -> None:
        """Free the requests and types."""
        for request in self._requests:
            request.Free()
        for datatype in self._types:
            datatype.Free()


def _measure(session: Session, item: Item) -> Iterator[Row]:
    return measure_halo(session, item.nbytes)


BENCHMARKS = (
    Benchmark(
        "halo",
        items=an_item_a_size(),
        measure=_measure,
        columns=(
            TableColumn("packed_us_p50", "packed us", 11, short),
            TableColumn("subarray_us_p50", "types us", 11, short),
            TableColumn("speedup", "speedup", 8, lambda value: f"{value:.2f}x"),
            TableColumn("bytes_received", "received", 11, str),
            TableColumn("bytes_least", "least", 11, str),
        ),
        test="Halo Exchange Latency Test",
        sizes="16M",
        titled=False,
    ),
)
