"""Shared memory: collectives inside a node, as compiled loops over its memory.

In reading order:

* ``segment_layout``: the numbers that a kernel reads, and their places;
* ``segment``: the memory of the ranks of one node;
* ``counters``: waits of ranks for each other;
* ``copies``: copies through the caches or past them;
* ``data_places``: copy buffers, result buffers, and arrays read in place;
* ``allreduce_kernels``, ``movement_kernels``: the collectives;
* ``shared_arrays``: arrays of the program that all ranks of a node have
  mapped.
"""
