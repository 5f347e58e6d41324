"""Control: the options, the agreement of ranks, the progress of a save.

In reading order:

* ``save_options``: the arguments of a `Checkpointer`, checked.
* ``save_schedule``: whether a call saves; Daly's interval.
* ``control_channel``: messages and agreements between the ranks (MPI).
* ``single_process``: the same for one process, without MPI.
* ``pending``: `Pending`, the thread that saves, and its pace on the wire.
* ``sigterm_handler``: the last task of a process that gets SIGTERM.
"""
