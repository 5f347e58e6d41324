"""The product of a matrix and blocks, for CUDA devices.

A product with a factor is a sum over the bits of a byte: of ``factor * 2**b``
where bit b is set.  So four bytes of a word are multiplied at once: a bit is
spread over its byte as a mask, and what the mask lets through is added, which
is exclusive or.  Masks are made once for all rows; no table is looked up, and
any factor takes as long as any other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from closeranks.checkpoint.erasure.gf256 import PRODUCTS, Bytes

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
