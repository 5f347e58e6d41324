"""Selection: the algorithm of a call, the same on all ranks.

In reading order:

* ``call_options``: options of a ``with comm.using(...)`` block;
* ``rules``: algorithms by operation and size;
* ``tuning_table``, ``tuning_origin``: tables of algorithms, of a user or of
  `closeranks tune`, and whether a table fits this machine;
* ``agreed_tuning``: the table of rank 0, for all ranks;
* ``choice``: an algorithm, and the reasons;
* ``candidates``: which algorithms meet in a race;
* ``chooser``: the choice for a call, by table, timed kernel, price or trial,
  and how long it holds;
* ``pricing``: the predicted times of the candidates;
* ``trial``: the fastest candidate, found on calls of the program;
* ``findings``: what trials have found, and their budget;
* ``remembered``, ``agreed_findings``: findings of earlier jobs, in files that
  rank 0 reads;
* ``explanation``: a choice and its reasons, printable;
* ``planner``: plans without ranks, and the numbers that choosers agree on.
"""
