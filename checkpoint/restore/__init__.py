"""Restore: from the slots that are left to the state of each rank.

In reading order:

* ``generation_choice``: which saves can be restored (pure), and a picture.
* ``recovery_search``: the scan of all nodes; slots mapped, verified, rebuilt.
* ``coding_work``: coding tasks carried out on slots and between ranks.
* ``fetch``: bytes of slots sent to the ranks that want them.
* ``redistribution``: the state of each rank, also on another number of ranks.
* ``slot_inventory``: slots in folders, listed, carried or removed by a tool.
* ``repair``: saves checked and repaired in one process; parity looked at
  later.
"""
