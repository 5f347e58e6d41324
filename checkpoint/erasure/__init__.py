"""Erasure codes and check sums: blocks of bytes that can be lost and made anew.

Pure arithmetic on memory: no MPI, no files, no topology.  In reading order:

* ``code``: `Code`, which encodes blocks and rebuilds lost ones.
* ``generator_matrix``: the field of 256 elements, and parity matrices.
* ``matrix_product``: the product of a matrix and blocks on the host.
* ``product_llvm``: the loop of that product, written for LLVM.
* ``product_layout``: the tables of that entry, as compiled code finds them.
* ``product_entry``: the compiled entry of a plain call (Numba).
* ``cuda_code``: the same product for blocks on a CUDA device.
* ``crc32c``: CRC-32C of bytes, alone or while they are copied.
* ``crc32c_llvm``: the loops of CRC-32C, written for LLVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from closeranks.checkpoint.erasure.code import Code

__all__ = ["Code"]


def __getattr__(name: str) -> object:
    """Import what the package shows when it is first asked for."""
    if name != "Code":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from closeranks.checkpoint.erasure.code import Code

    return Code
