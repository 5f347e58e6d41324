"""Dispatch: one call, from its arguments to the library or a plan.

In reading order:

* ``dispatch``: the steps of a call: read, choose, serve;
* ``known_calls``: calls of a form that was read before, and is not read again;
* ``race_calls``: calls whose time is taken;
* ``shortcut_learning``: what shortcuts learn from calls;
* ``call_errors``: the errors that end a call, and who hears of them;
* ``argument_check``: the check that all ranks ask for the same;
* ``plan_cache``: bound plans, kept for the next call of their kind;
* ``open_plans``: bound plans whose input has any length;
* ``request``: the requests of calls that return at once;
* ``persistent_operation``, ``persistent_creation``, ``persistent_starts``:
  persistent operations, how they are made, and how requests start them;
* ``object_refusal``: calls with objects that one rank cannot give;
* ``device_collectives``: calls on arrays in device memory;
* ``kernel_speed``: kernels in node memory beside the library, timed at init or
  when their operation is priced;
* ``forecast``: the algorithm that a call would get;
* ``injected_dispatch``: the same dispatch with faults on purpose.
"""
