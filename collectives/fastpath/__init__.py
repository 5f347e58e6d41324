"""Fast path: known calls, served without the steps that read a new one.

In reading order:

* ``shm_call``: a call that is one kernel in the memory of the node;
* ``shortcut``: a call of a known kind, by the library or by such a kernel;
* ``shortcut_record``, ``shortcut_layout``: the facts that machine code reads,
  and their places in memory;
* ``shortcut_reading_code``, ``shortcut_begun_code``, ``shortcut_code``: that
  machine code, compiled by Numba: arguments, calls that give a request, all;
* ``request_wait``, ``request_wait_layout``, ``request_wait_code``: the first
  millisecond of a wait for such a request;
* ``shortcut_versions``, ``shortcut_proof``: the interpreters whose objects it
  may read, and the proof that it reads them rightly.
"""
