"""Selection: the algorithm of a call, the same on all ranks.

In reading order:

* ``call_options``: options of a ``with comm.using(...)`` block;
* ``tuning_table``, ``tuning_origin``: tables of algorithms, of a user or of
  `closeranks tune`, and whether a table fits this machine;
* ``agreed_tuning``: the table of rank 0, for all ranks;
* ``chooser``: the choice for a call, by table, price or trial;
* ``trial``: the fastest candidate, found on calls of the program;
* ``explanation``: a choice and its reasons, printable;
* ``planner``: plans without ranks, and the numbers that choosers agree on.
"""
