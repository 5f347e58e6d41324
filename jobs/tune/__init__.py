"""``closeranks tune``: measures a machine, and writes what `init` reads.

In reading order:

* ``command``: the verb;
* ``survey``: stages of hierarchical collectives, timed on ranks;
* ``winners``: the algorithm that wins each size, by the trials of a job.
"""
