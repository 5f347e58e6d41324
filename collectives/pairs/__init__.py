"""Index-value pairs in messages, and rows: the data of sparse collectives.

* `sparse_vector`: the entries of a vector that are stored, `SparseVector`.
* `pair_loops`: loops over pairs, compiled.
* `pair_message`: headers, forms of indices, what several messages combine to.
* `pair_kernels`: kernels that plans of pairs name.
* `row_kernels`: kernels of plans that move rows.
"""
