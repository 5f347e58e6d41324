"""``closeranks checkpoint``: lists, verifies, exports and removes checkpoints.

In reading order:

* ``checkpoint_command``: the verbs;
* ``name_choice``: the checkpoints that a name stands for;
* ``tables``: checkpoints as tables;
* ``verify``: checkpoints checked and repaired;
* ``clean``: checkpoints removed, or written as one plain file.
"""
