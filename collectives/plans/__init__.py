"""Plans: the steps of every rank for one collective, as data.

In reading order:

* ``block``: runs of items of a buffer, which steps read and write;
* ``schedule``: the steps of one rank, and the same steps as numbers;
* ``table_columns``: what the numbers of a step are;
* ``collective``: the collectives of MPI, and their meaning on arrays;
* ``plan_type``: a plan of all ranks, an algorithm that makes it, its stages;
* ``count_record``: how the numbers of a plan follow from its count;
* ``count_operations``: how a record computes and compares;
* ``port_tree``: the hierarchy of ports and rails over the topology;
* ``rank_classes``: ranks that do the same, for prices of large jobs;
* ``apply_kernels``: the pure functions that APPLY steps name;
* ``identity``: the name of an execution;
* ``message_tags``: the MPI tags of executions and of other purposes.
"""
