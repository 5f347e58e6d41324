"""Machine code: compiled by Numba once a node, loaded by every process.

* `code_cache`: where code is kept; loads a function, or compiles it.
* `code_image`: object code linked at once, and loaded without LLVM.
* `code_processor`: the processor that code is made for.
* `object_code`: object code written and loaded by LLVM alone.
* `atomics`: atomic loads, stores and copies as Numba intrinsics.
* `c_calls`: memory and C functions by address, as Numba intrinsics.
* `python_builtin`: builtin Python functions that call machine code.
* `python_builtin_layout`: the facts that this code reads, in memory.
* `python_builtin_code`: the machine code of these functions.
"""
