"""Patterns: stages of an algorithm over any group, for builders to put together.

In reading order:

* ``direct_exchange``, ``ring``, ``recursive_doubling``, ``bruck``, ``trees``,
  ``prefix_scan``: one family of stages a file;
* ``over_vector``: builders of operations on a whole vector out of one stage;
* ``segments``: the number of segments that keeps all tiers at work;
* ``packing_order``, ``two_tiers``, ``leader_tree``: the order of blocks and
  the groups of hierarchical algorithms;
* ``round_classes``, ``tier_classes``: classes of ranks that do the same, for
  prices, see `closeranks.collectives.plans.rank_classes`.
"""
