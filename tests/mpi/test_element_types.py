"""Calls of as many bytes that differ in what the bytes are: each is taken for what it is."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr

World = cr.Communicator
#: Bytes of a block: as many elements of each type as fit.
BYTES = 192
TYPES = ("i8", "f8", "f4", "u4", "c8")


def _code(values: np.ndarray[Any, Any]) -> str:
    code: str = {"l": "q"}.get(values.dtype.char, values.dtype.char)
    return code


def _array(values: np.ndarray[Any, Any]) -> Any:
    if values.dtype.kind == "c":
        return values  # array.array has no complex numbers
    return array.array(values.dtype.char, values.tolist())


def _ctypes(values: np.ndarray[Any, Any]) -> Any:
    if values.dtype.kind == "c":
        return values
    kind = np.ctypeslib.as_ctypes_type(values.dtype)
    return (kind * len(values))(*values.tolist())


#: Each makes of an array what a program may pass in its place.
FORMS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "array": lambda values: values,
    "array.array": _array,
    "memoryview": lambda values: np.asarray(values).data,
    "ctypes": _ctypes,
    "[array, type]": lambda values: [values, MPI.Datatype.fromcode(values.dtype.char)],
    "[array, code]": lambda values: [values, _code(values)],
    "[bytes, type]": lambda values: [values.view("u1"), MPI.Datatype.fromcode(values.dtype.char)],
    "(bytes, count, type)": lambda values: (
        values.view("u1"), len(values), MPI.Datatype.fromcode(values.dtype.char)
    ),
}  # fmt: skip


def _values(form: Any, dtype: str) -> list[Any]:
    """What lies in a buffer, whatever passes it."""
    buffer = form[0] if isinstance(form, (list, tuple)) else form
    if isinstance(buffer, ctypes.Array):
        return list(buffer)
    found: list[Any] = np.frombuffer(memoryview(buffer).cast("B"), dtype).tolist()
    return found


def _call(comm: World, method: str, way: str, *arguments: Any, **named: Any) -> None:
    if way == "I":
        getattr(comm, "I" + method.lower())(*arguments, **named).Wait()
    elif way == "_init":
        with getattr(comm, method + "_init")(*arguments, **named) as operation:
            for _ in range(2):
                operation.start()
                operation.wait()
    else:
        getattr(comm, method)(*arguments, **named)


def _expected(comm: World, method: str, given: np.ndarray[Any, Any]) -> Any:
    """What a rank gets; None where nothing is defined."""
    size, rank = comm.size, comm.rank
    if method == "Reduce":
        return (given * size).tolist() if rank == 0 else None
    if method == "Scan":
        return (given * (rank + 1)).tolist()
    if method == "Exscan":
        return (given * rank).tolist() if rank else None
    if method == "Reduce_scatter_block":
        mine = len(given) // size
        return (given * size)[rank * mine : (rank + 1) * mine].tolist()
    return (given * size).tolist()


@pytest.mark.parametrize("way", ["", "shared", "I", "_init"])
@pytest.mark.parametrize(
    "method", ["Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block"]
)
def test_sums_are_of_the_type_that_is_passed(world: World | None, method: str, way: str) -> None:
    if world is None or world.size not in (1, 3):
        return
    kernels = method not in ("Scan", "Exscan") and world.size > 1
    algorithm = "shared" if way == "shared" and kernels else "auto"
    with world.Dup() as comm:
        for form, make in FORMS.items():
            for turn, dtype in enumerate(TYPES):
                count = BYTES // np.dtype(dtype).itemsize
                given = (np.arange(count) % 9 + turn % 3).astype(dtype)
                mine = count // comm.size if method == "Reduce_scatter_block" else count
                room = make(np.zeros(mine, dtype))
                sent = make(given.copy())
                if isinstance(sent, tuple):  # whose count is of one block
                    sent = (sent[0], mine, sent[2])
                _call(comm, method, way, sent, room, algorithm=algorithm)
                wanted = _expected(comm, method, given)
                if wanted is not None:
                    assert _values(room, dtype) == wanted, (form, dtype, turn)


def test_as_many_bytes_moved_and_reduced_by_other_ops(world: World | None) -> None:
    """Ops and types of one size in turn, past the point where calls are settled."""
    if world is None or world.size != 3:
        return
    ops = (MPI.SUM, MPI.MAX, MPI.BOR, MPI.PROD, cr.MEAN)
    with world.Dup() as comm:
        for turn in range(300):
            dtype = ("i8", "f8")[turn % 2]
            op = ops[turn % 3 if dtype == "i8" else (0, 1, 3, 4)[turn % 4]]
            given = np.full(12, 1 + comm.rank % 2, dtype)
            room = np.zeros(12, dtype)
            comm.Allreduce([given, MPI.Datatype.fromcode(given.dtype.char)], room, op=op)
            all_of_them = [1 + rank % 2 for rank in range(comm.size)]
            wanted = (
                sum(all_of_them), max(all_of_them), int(np.bitwise_or.reduce(all_of_them)),
                int(np.prod(all_of_them)), sum(all_of_them) / comm.size,
            )  # fmt: skip
            assert room.tolist() == [wanted[ops.index(op)]] * 12, (turn, op)
