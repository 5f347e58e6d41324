"""The table is enough: a loop that knows numbers only, and the C library, runs a ring.

What is proved here in ctypes is what a compiled loop will do.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine import execution_arrays as places
from closeranks.collectives.engine.execution_arrays import addresses, handle, handles
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.schedule import Kind, StepTable
from tests.collectives.shape.ring import ring
from tests.mpi.ground import bind, opened

IS_POINTER = "Open MPI" in MPI.Get_library_version()
HANDLE: Any = ctypes.c_void_p if IS_POINTER else ctypes.c_int
ADDRESS, INT = ctypes.c_void_p, ctypes.c_int


class Library:
    """The four calls a loop needs, on plain integers."""

    def __init__(self) -> None:
        library = ctypes.CDLL(MPI.__file__)
        message = [ADDRESS, INT, HANDLE, INT, INT, HANDLE, ADDRESS]
        for name, arguments in {
            "MPI_Isend": message,
            "MPI_Irecv": message,
            "MPI_Test": [ADDRESS, ADDRESS, ADDRESS],
            "MPI_Reduce_local": [ADDRESS, ADDRESS, INT, HANDLE, HANDLE],
        }.items():
            call = getattr(library, name)
            call.argtypes = arguments
            setattr(self, name, call)
        self.status = ctypes.create_string_buffer(256)

    def arrived(self, request: Any) -> bool:
        flag = INT(0)
        self.MPI_Test(request, ctypes.addressof(flag), self.status)  # type: ignore[attr-defined]
        return bool(flag.value)


def loop(
    table: StepTable, where: list[int], names: list[int], first_tag: int, itemsize: int
) -> None:
    """Interpret a table of static, contiguous steps."""
    library: Any = Library()
    left = table.rows[:, columns.NEED].tolist()
    following = table.successors.tolist()
    units = [unit or itemsize for unit in table.buffers[:, 1].tolist()]
    ready = [step for step, need in enumerate(left) if need == 0]
    pending: list[tuple[int, Any]] = []
    done = 0

    def place(row: list[int], column: int) -> tuple[int, int]:
        buffer, start, count = row[column : column + 3]
        return where[buffer] + start * units[buffer], count

    def finish(step: int) -> None:
        nonlocal done
        done += 1
        first, number = table.rows[step, [columns.NEXT, columns.N_NEXT]].tolist()
        for later in following[first : first + number]:
            left[later] -= 1
            if left[later] == 0:
                ready.append(later)

    while done < len(table):
        while ready:
            step = min(ready)
            ready.remove(step)
            row = table.rows[step].tolist()
            target, count = place(row, columns.BLOCK)
            if row[columns.KIND] in (Kind.SEND, Kind.RECEIVE):
                sending = row[columns.KIND] == Kind.SEND
                request = ctypes.create_string_buffer(8)
                (library.MPI_Isend if sending else library.MPI_Irecv)(
                    target, count * itemsize, names[places.BYTE], row[columns.PEER],
                    first_tag + row[columns.SLOT], names[places.TRAFFIC], request,
                )  # fmt: skip
                pending.append((step, request))
                continue
            source, _ = place(row, columns.SOURCE)
            if row[columns.KIND] == Kind.REDUCE:
                library.MPI_Reduce_local(
                    source, target, count, names[places.ELEMENT], names[places.OP]
                )
            else:
                ctypes.memmove(target, source, count * itemsize)
            finish(step)
        for entry in tuple(pending):
            if library.arrived(entry[1]):
                pending.remove(entry)
                finish(entry[0])


def test_numbers_alone_run_a_plan(comm: MPI.Intracomm) -> None:
    with opened(comm) as world:
        n = 1000
        data, output = np.arange(n, dtype="f4"), np.zeros(n, "f4")
        bound = bind(ring(comm.size, n), world, data, output)
        names = handles(bound).tolist()
        tag = world.first_tag(world.sequence())
        loop(bound.table, addresses(bound).tolist(), names, tag, 4)
        np.testing.assert_array_equal(output, comm.size * data)
        comm.Barrier()


def test_handles_are_the_librarys_own(comm: MPI.Intracomm) -> None:
    library = ctypes.CDLL(MPI.__file__)
    library.MPI_Comm_size.argtypes = [HANDLE, ADDRESS]
    size = INT(0)
    number = handle(comm)
    assert -(2**63) <= number < 2**63
    library.MPI_Comm_size(number, ctypes.addressof(size))
    assert size.value == comm.size
