"""Erasure codes of blocks that lie on a CUDA device, computed there.

A product with a factor is a sum over the bits of a byte: of ``factor * 2**b``
where bit b is set.  So four bytes of a word are multiplied at once: a bit is
spread over its byte as a mask, and the masked factor is added, by exclusive
or.  Masks are made once for all rows; no table is looked up, and any factor
takes as long as any other.

All work is put on the stream of the result and ordered with the streams of the
blocks.  The host waits for nothing, unless an array tells no stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.generator_matrix import PRODUCTS, Bytes, Recipe
from closeranks.comms.gpu.array_interface import device_array
from closeranks.comms.gpu.device_array import DeviceArray
from closeranks.comms.gpu.pinned_staging import Span, put
from closeranks.errors import UsageError

#: Of the kernel.
NAME: Final = "multiply"
#: Rows of a matrix that are multiplied at once: their sums stay in registers.
ROWS: Final = 8
#: Bytes of each row that a thread makes.
BYTES: Final = 16

_SOURCE: Final = """
#ifdef __cplusplus
extern "C"
#endif
__global__ void multiply(
    const unsigned long long *table, long long count, long long nbytes, long long aligned)
{
    /* The addresses of blocks, those of results, and eight words for each row and block. */
    const unsigned int *factors = (const unsigned int *)(table + count + ROWS);
    const long long first = 16LL * ((long long)blockIdx.x * blockDim.x + threadIdx.x);
    const long long rest = nbytes - first;
    const int whole = aligned && rest >= 16;
    unsigned int sums[ROWS][4] = {{0}};
    if (rest <= 0) return;
    for (long long number = 0; number < count; ++number, factors += 8) {
        const unsigned char *block = (const unsigned char *)table[number] + first;
        unsigned int words[4] = {0, 0, 0, 0};
        if (whole) {
            const uint4 four = *(const uint4 *)block;
            words[0] = four.x; words[1] = four.y; words[2] = four.z; words[3] = four.w;
        } else {
            UNROLLED for (int at = 0; at < 16; ++at)
                if (at < rest) words[at / 4] |= (unsigned int)block[at] << at % 4 * 8;
        }
        UNROLLED for (int bit = 0; bit < 8; ++bit) {
            unsigned int masks[4];
            UNROLLED for (int word = 0; word < 4; ++word)
                masks[word] = (words[word] >> bit & 0x01010101u) * 255u;
            UNROLLED for (int row = 0; row < ROWS; ++row) {
                const unsigned int factor = factors[8 * count * row + bit];
                UNROLLED for (int word = 0; word < 4; ++word)
                    sums[row][word] ^= masks[word] & factor;
            }
        }
    }
    UNROLLED for (int row = 0; row < ROWS; ++row) {
        unsigned char *result = (unsigned char *)table[count + row] + first;
        if (whole) {
            uint4 four;
            four.x = sums[row][0]; four.y = sums[row][1];
            four.z = sums[row][2]; four.w = sums[row][3];
            *(uint4 *)result = four;
        } else {
            UNROLLED for (int at = 0; at < 16; ++at)
                if (at < rest) result[at] = sums[row][at / 4] >> at % 4 * 8;
        }
    }
}
"""


def source(rows: int) -> str:
    """Write the kernel for so many rows.

    Local.

    Parameters
    ----------
    rows : int
        1 to `ROWS`.

    Returns
    -------
    str
        CUDA C, of a function `NAME` that takes the address of a table of 64-bit
        words, the number of blocks, their bytes, and whether all addresses are
        multiples of `BYTES`.  Each thread makes `BYTES` bytes of every row.
    """
    defined = f'#define ROWS {rows}\n#define UNROLLED _Pragma("unroll")'
    return f"{defined}\n{_SOURCE}"


def table(matrix: Bytes, blocks: list[int], results: list[int]) -> NDArray[np.uint64]:
    """Write the table that the kernel reads.

    Local.

    Parameters
    ----------
    matrix : ndarray of uint8, shape (rows, count)
        Its factors.
    blocks, results : list of int
        The addresses of what is multiplied, and of what is written.

    Returns
    -------
    ndarray of uint64
        For the device.
    """
    bits = PRODUCTS[matrix[:, :, None], np.uint8(1) << np.arange(8, dtype=np.uint8)]
    words = bits.astype(np.uint32) * np.uint32(0x01010101)
    addresses = np.array([*blocks, *results], np.uint64)
    return np.concatenate([addresses, words.reshape(-1).view(np.uint64)])


#: Threads of a group on the device.
_THREADS = 256


def is_device(blocks: Any) -> bool:
    """Tell whether blocks are of another library than NumPy.

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
    """See blocks one by one; refuse blocks that do not fit."""
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
        place = _on_device(like, table(lot, sources, targets).view(np.uint8))
        aligned = all(address % BYTES == 0 for address in (*sources, *targets))
        like.runtime.launch(
            source(len(lot)), NAME, groups, _THREADS,
            (place, count, like.nbytes, int(aligned)), like.stream, like.device,
        )  # fmt: skip


def _on_device(like: DeviceArray, data: Bytes) -> int:
    """Bring bytes where the stream of an array finds them; gives their address.

    The memory is the stream's: its next user comes after this work.
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
