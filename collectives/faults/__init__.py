"""Faults: attempts that are repeated, and communicators that outlive dead ranks.

In reading order:

* ``attempts``: a body that is repeated until all members agree on its end;
* ``votes``: the outcome of the votes at the end of an attempt, as a table;
* ``recovery``: the recovery of all communicators after ranks have died;
* ``survivor_creation``: communicators of the survivors, and those derived
  again;
* ``rank_assignment``: the seats of survivors and replacements;
* ``spares``: processes that wait for a vacant seat;
* ``respawn``: processes started for a vacant seat;
* ``final_meeting``: the last barrier of a world.
"""
