"""Ranks that die, stop or give up: how other ranks and the library hear of it.

* `failure_notice`: the message of a rank that gives up.
* `channel`: short messages from each rank to all others, beside MPI.
* `call_counter`: how many collective calls a rank has begun.
* `failure_notices`: notices that a rank has received, and sends.
* `uncaught_error`: the end of the job by an uncaught error.
* `recovery_allgather`: an all-gather on communicators made in a recovery.
* `peer_watch`: processes of this node, watched for their end.
* `watchdog`: a process that ends stopped ranks.
* `spawn_guard`: a process that ends a new rank after its parent's death.
* `agreement`: agreement on flags among the living ranks.
* `collective_creation`: objects that all ranks make, or none.
"""
