"""Engine: runs plans on real buffers, and ends them when ranks fail.

Five files are one knot and need each other: ``epoch_world``, ``bound_plan``,
``execution``, ``progress_engine``, ``error_translation``.  In reading order:

* ``init_state``: all that the communicators of one `init` share;
* ``epoch_world``: all that lives as long as one epoch of a communicator;
* ``bound_plan``: a plan on the buffers of a call;
* ``deferred_blocks``, ``leaves``, ``native_call``: blocks of late known
  places, leaves of a plan, operations of the MPI library;
* ``execution``, ``progress_answer``: one run of a plan, a little at a time;
* ``progress_engine``: all runs of a process;
* ``interpreter``: the choice between Python and compiled code;
* ``execution_arrays``, ``loop_layout``, ``compiled_loop``,
  ``loop_mpi_functions``, ``mpi_handles``: the compiled loop and its arrays;
* ``call_guard``: calls that a communicator still takes;
* ``error_translation``: errors of MPI as errors of this package;
* ``late_ranks``, ``late_ranks_protocol``: ranks that miss a deadline;
* ``tracked_communicators``: communicators of the program;
* ``fault_injection``: faults on purpose, by a schedule.
"""
