"""Signals, forked children and the end of this process.

* `signal_handlers`: handlers that wait until a collective call has ended.
* `forked_child`: calls are refused in a child of an MPI process.
* `exit_report`: tells the launcher how this process ends.
* `hard_deadline`: flushes buffers, and ends a process that waits for ever.
"""
