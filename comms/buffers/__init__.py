"""Buffers of a call: specification, datatype, memory, packing.

* `buffer_spec`: buffer specifications of one block, and of one block a rank.
* `datatype`: one entry: MPI datatype, NumPy type, type signature.
* `array_memory`: the memory of an object of any library.
* `half_as_float`: half-precision messages that travel as float32.
* `pack_entries`: entries copied to packed bytes and back.
* `strided_block`: runs of bytes as nested loops.
* `typemap`: MPI datatypes as strided blocks.
* `packing`: chooses how a strided block is packed.
* `copy_loops`: the compiled loops of `packing`.
"""
