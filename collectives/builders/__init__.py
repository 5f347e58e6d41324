"""Builders: the algorithms of every collective, each as a plan of all ranks.

* ``patterns``: stages over any group of ranks: rings, trees, doubling, ...;
* one file an operation, with its flat algorithms (one group of all ranks) and
  its hierarchical ones (along the tree of ports): ``allreduce``, ``reduce``,
  ``reduce_scatter``, ``bcast``, ``allgather``, ``gather``, ``scatter``,
  ``alltoall``, ``scan``, ``barrier``;
* ``sparse_allreduce``: sums of index-value pairs;
* ``row_moves``, ``row_exchange``: rows that some ranks want, and sums of them;
* ``shared_memory``: the same operations as one kernel in the memory of a node;
* ``leaf_expansions``: the moves that stand for a leaf of a plan;
* ``catalogue``: the list of all algorithms.
"""
