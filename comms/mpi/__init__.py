"""The MPI library: handles, turns, faults, and work before MPI_Finalize.

* `mpi_handle`: handles, and ranks of one communicator in another.
* `mpi_lock`: the lock under which threads of this package call MPI.
* `messages`: long messages in pieces; an all-gather of messages.
* `interruption`: one exception that is kept until a wait has ended.
* `finalization`: tasks that are done before MPI ends.
* `ulfm`: which ranks have died; revoke, shrink, leave.
* `pmix`: reports dead processes through PMIx.
* `deferred_free`: communicators that are freed later, or by the program.
* `node_peers`: the ranks that share node memory.
"""
