"""Communication basics: topology, discovery, shared memory, buffers, waiting.

Packages in the order of import; each uses only those before it:

* `shm`: files that the processes of one node share.
* `jit`: compiled code, kept once a node.
* `exit`: signal handlers, forked children, exit status.
* `mpi`: locks, handles, finalization and faults of the MPI library.
* `liveness`: notices of dead, stopped and failed ranks; agreement.
* `gpu`: arrays in device memory.
* `buffers`: buffer specifications, datatypes, packing.
* `topology`: the hierarchy as data, its JSON and its drawing.
* `discovery`: topology and link measurements of the running job.

Modules for all of them: `argument`, `numeric_argument`, `settings`, `wait`,
`lazy`, `registry`, `result_memory`.
"""

from __future__ import annotations

from closeranks.comms.topology.level_communicators import Groups
from closeranks.comms.topology.link import Link
from closeranks.comms.topology.node_description import Device, Devices
from closeranks.comms.topology.topology import Topology

__all__ = ["Device", "Devices", "Groups", "Link", "Topology"]
