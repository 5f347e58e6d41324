"""Erasure codes and check sums: blocks of bytes that can be lost and made anew.

Pure arithmetic on memory: no MPI, no files, no topology.  In reading order:

* ``code``: `Code`, which encodes blocks and rebuilds lost ones.
* ``generator_matrix``: the field of 256 elements, and parity matrices.
* ``matrix_product``: the product of a matrix and blocks on the host.
* ``product_llvm``: the loop of that product, written for LLVM.
* ``product_entry``: the compiled entry of a plain call (Numba).
* ``cuda_code``: the same product for blocks on a CUDA device.
* ``crc32c``: CRC-32C of bytes, alone or while they are copied.
* ``crc32c_llvm``: the loops of CRC-32C, written for LLVM.
"""
