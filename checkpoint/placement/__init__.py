"""Placement: which node holds which block of which rank.

All decisions are pure: the topology and sizes in, groups and places out.  In
reading order:

* ``erasure_groups``: which nodes protect each other.
* ``stripe_layout``: where the bytes of a rank lie, and where parities lie.
* ``coding_tasks``: which blocks are made of which others, and by which rank.
* ``slot_header``: the header of a slot, and its name.
"""
