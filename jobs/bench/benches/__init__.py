"""The benchmarks, one a module; each registers itself.

``registration`` says how a benchmark registers, and lists the modules:

* ``collective``: every collective at one size, checked, timed, compared;
* ``varied``, ``call_patterns``: calls that change from one to the next;
* ``point_to_point``: messages between pairs of ranks, as OSU's;
* ``plan_steps``: the cost of a step of a plan;
* ``pack``: strided data copied in three ways;
* ``overlap``: computation while a collective is under way;
* ``init_time``, ``init_program``: from MPI_Init to the first all-reduce, and
  the program that is started for it;
* ``faults``, ``churn``: ranks that die and are replaced, once and for long;
* ``erasure``: parity made and blocks rebuilt on one core;
* ``checkpoint``, ``snapshot``: the cost of saves, and of a restore;
* ``redistribute``, ``halo``: changes of layout, and ghost cells;
* ``coded``: rounds with slow ranks;
* ``sparse``: sums of vectors of which few entries are stored; also rows and
  chunks for the ranks that want them.
"""
