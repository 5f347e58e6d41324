"""Reduction: MPI ops on memory of this process.

* ``op``: the ops in NumPy, or in ``MPI_Reduce_local``;
* ``compiled_ops``: the ops as machine code, for loops without Python;
* ``compiled_op_loops``: the loops that Numba compiles for them;
* ``half_precision``: float16 and bfloat16 for these loops.
"""
