"""Analysis: proofs and prices of plans, in one process, without MPI.

* ``simulation``: all ranks of a plan, in random order, compared with the
  result;
* ``races``: pairs of steps of one rank that the graph leaves unordered;
* ``cost_model``: the time of a plan, and its bytes over each level.
"""
