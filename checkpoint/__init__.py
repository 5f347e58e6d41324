"""Checkpoints: copies of a job's state in the memory of its nodes.

Packages in the order of import; each uses only those before it:

* `erasure`: Reed-Solomon codes and CRC-32C.
* `placement`: which node keeps which block.
* `state`: a tree of arrays as bytes.
* `memory`: slots, the files in node memory.
* `control`: options, agreement of ranks, progress of a save.
* `restore`: from slots or files to the state of each rank.
* `disk`: saves as HDF5 files.
* `saving`: one save, and the claim on a name.

`checkpointer` holds the class `Checkpointer`, which uses all of them.
"""

from __future__ import annotations

from closeranks.checkpoint.checkpointer import Checkpointer
from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.control.save_schedule import interval
from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.state.shards import PerRank, Shard

__all__ = ["Checkpointer", "Code", "Pending", "PerRank", "Shard", "interval"]
