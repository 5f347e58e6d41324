"""Replicated state: compare a state of all ranks, and make it alike again.

In reading order:

* ``state_leaves``: the pytree of a state, and its leaves;
* ``leaf_bytes``: the bytes of a leaf, and whether its numbers are finite;
* ``leaf_transfer``: messages with leaves, and their place in old memory;
* ``synchronization``: the ranks that are right, and the repair of the others.
"""
