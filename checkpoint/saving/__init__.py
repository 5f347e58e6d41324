"""Saving: one job's saves, from its first meeting to its end.

In reading order:

* ``job_claim``: the slots of a name are taken by one job.
* ``membership_term``: all that ranks have in common until the next recovery.
* ``save``: one save, phase by phase.
* ``flush``: committed saves on their way to disk.
"""
