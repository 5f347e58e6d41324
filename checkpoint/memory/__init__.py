"""Slots: files in the memory of a node that outlive the processes.

In reading order:

* ``run_key``: the name of a job's checkpoints in files.
* ``slot_file``: one slot: headers, check sums, data, parity.
* ``slot_set``: the slots of one rank, and room for a new save.
* ``slot_locks``: the lock of a node that says which job has a name open.
"""
