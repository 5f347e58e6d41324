"""Erasure codes of blocks that lie on a device, computed there.

All work is put on the stream of the result and ordered with those of the
blocks; the host waits for nothing, unless an array tells no stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.checkpoint.erasure import product_cuda
from closeranks.checkpoint.erasure.gf256 import Bytes
from closeranks.checkpoint.erasure.product_cuda import BYTES, NAME, ROWS
from closeranks.comms.gpu.array_interface import device_array
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.comms.gpu.pinned_staging import Span, put
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.checkpoint.erasure.code import Recipe

#: Threads of a group on the device.
_THREADS = 256


def is_device(blocks: Any) -> bool:
    """Tell whether somebody has passed blocks of another library than NumPy.

    Local.

    Parameters
    ----------
    blocks : object
        A table of bytes, or a list of runs of them.

    Returns
    -------
    bool
        True if any of them is.
    """
    if blocks is None or isinstance(blocks, np.ndarray):
        return False
    if _is_foreign(blocks) or not isinstance(blocks, Iterable):
        return _is_foreign(blocks)
    return any(_is_foreign(block) for block in blocks if not isinstance(block, np.ndarray))


def encode(matrix: Bytes, blocks: Any, out: Any) -> Any:
    """Give the parity blocks of data blocks, as `Code.encode`.

    Local.

    Parameters
    ----------
    matrix : ndarray of uint8, shape (parity, data)
        Of the code.
    blocks : array of uint8, shape (data, nbytes), or arrays of shape (nbytes,)
        On one device.
    out : the same for (parity, nbytes), or None
        Where to.

    Returns
    -------
    object
        As ``out``; an array of the library that drives the device if that is None.

    Raises
    ------
    UsageError
        If a number, a length, a kind or a place does not fit.
    """
    rows, count = matrix.shape
    sources = _rows("encode", "data blocks", blocks, count)
    if out is None:
        out = _room(sources[0], rows)
    results = _rows("encode", "parity blocks", out, rows, sources[0])
    _meet(results[0], sources + results)
    _multiply(matrix, sources, results)
    _part(results[0], sources + results)
    return out


def reconstruct(recipe: Recipe, blocks: Any, out: Any) -> Any:
    """Give all blocks, lost ones rebuilt, as `Code.reconstruct`.

    Local.

    Parameters
    ----------
    recipe : Recipe
        How.
    blocks : array of uint8, shape (data + parity, nbytes), or as many arrays
        On one device.
    out : the same as blocks, or None
        Where to.

    Returns
    -------
    object
        As of `encode`.

    Raises
    ------
    UsageError
        As of `encode`.
    """
    total = len(recipe.kept) + len(recipe.lost)
    sources = _rows("reconstruct", "blocks", blocks, total)
    if out is None:
        out = _room(sources[0], total)
    results = _rows("reconstruct", "blocks of out", out, total, sources[0])
    first = results[0]
    _meet(first, sources + results)
    for number in recipe.kept:
        target, source = results[number].pointer, sources[number].pointer
        if target != source:
            first.runtime.copy(target, source, first.nbytes, first.stream, first.device)
    if recipe.lost:
        _multiply(recipe.matrix, [sources[number] for number in recipe.read],
                  [results[number] for number in recipe.lost])  # fmt: skip
    _part(first, sources + results)
    return out


def _is_foreign(block: object) -> bool:
    return hasattr(block, "__cuda_array_interface__") or hasattr(block, "__dlpack__")


def _rows(
    operation: str, what: str, blocks: Any, count: int, like: DeviceArray | None = None
) -> list[DeviceArray]:
    """See blocks one by one; refuse those that do not fit."""
    if len(blocks) != count:
        raise UsageError(operation, f"{len(blocks)} {what} of {count}", "pass all")
    table = device_array(blocks, operation) if _is_foreign(blocks) else None
    if table is None or len(table.shape) != 2:
        found = [device_array(block, operation) for block in blocks]
    else:
        found = [_row(table, number) for number in range(count)]
    rows: list[DeviceArray] = []
    for number, row in enumerate(found):
        if row is None:
            problem = f"number {number} of the {what} has no bytes on a device"
            raise UsageError(operation, problem, "pass all on one device, or all on the host")
        like = like or row
        if row.dtype != np.uint8 or len(row.shape) != 1 or not row.row_major:
            problem = f"{row.dtype} of shape {row.shape}, strides {row.strides}"
            raise UsageError(operation, f"number {number} of the {what} is {problem}",
                             "pass uint8, each in one piece")  # fmt: skip
        if (row.nbytes, row.device, row.runtime) != (like.nbytes, like.device, like.runtime):
            problem = f"has {row.nbytes} bytes on device {row.device}, others {like.nbytes}"
            raise UsageError(operation, f"number {number} of the {what} {problem} on {like.device}",
                             "pass equal blocks of one device")  # fmt: skip
        rows.append(row)
    return rows


def _row(table: DeviceArray, number: int) -> DeviceArray:
    """Give a row of a table."""
    return DeviceArray(
        table.pointer + number * table.strides[0], table.shape[1:], table.strides[1:], table.dtype,
        table.device, table.writable, table.owner, table.runtime, table.stream, table.is_ordered,
    )  # fmt: skip


def _room(like: DeviceArray, rows: int) -> Any:
    """Make memory for blocks beside another one."""
    return like.runtime.rows(rows, like.nbytes, like.device, like.stream)


def _multiply(matrix: Bytes, blocks: Sequence[DeviceArray], results: Sequence[DeviceArray]) -> None:
    """Put the product on the stream of the first result, some rows at a time."""
    like, count = results[0], len(blocks)
    sources = [block.pointer for block in blocks]
    groups = -(-like.nbytes // (BYTES * _THREADS))
    for start in range(0, len(matrix), ROWS):
        lot = matrix[start : start + ROWS]
        targets = [result.pointer for result in results[start : start + ROWS]]
        place = _on_device(like, product_cuda.table(lot, sources, targets).view(np.uint8))
        aligned = all(address % BYTES == 0 for address in (*sources, *targets))
        like.runtime.launch(
            product_cuda.source(len(lot)), NAME, groups, _THREADS,
            (place, count, like.nbytes, int(aligned)), like.stream, like.device,
        )  # fmt: skip


def _on_device(like: DeviceArray, data: Bytes) -> int:
    """Bring bytes where the stream of an array finds them; gives their address.

    The memory is the stream's: who gets it next comes after what is there.
    """
    runtime = like.runtime
    pinned = runtime.pinned(data.size)
    pinned[:] = data
    room = runtime.room(data.size, like.device, like.stream)
    place = DeviceArray(room.pointer, data.shape, (1,), data.dtype, like.device, True, room,
                        runtime, like.stream, True)  # fmt: skip
    put(place, [Span(0, 0, data.size)], pinned)
    return room.pointer


def _meet(first: DeviceArray, arrays: Iterable[DeviceArray]) -> None:
    """Let the stream of an array wait for those of others."""
    runtime, device = first.runtime, first.device
    for stream in {array.stream for array in arrays} - {first.stream}:
        runtime.hold(first.stream, runtime.record(stream, device), device)


def _part(first: DeviceArray, arrays: Sequence[DeviceArray]) -> None:
    """Let the streams of others wait for an array's, the host where none is told."""
    runtime, device = first.runtime, first.device
    end = runtime.record(first.stream, device)
    for stream in {array.stream for array in arrays} - {first.stream}:
        runtime.hold(stream, end, device)
    if not all(array.is_ordered for array in arrays):
        end.synchronize()
