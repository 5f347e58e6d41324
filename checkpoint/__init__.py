"""What is remembered: copies of a job's state in the memory of its nodes."""

from __future__ import annotations

from closeranks.checkpoint.checkpointer import Checkpointer
from closeranks.checkpoint.erasure import Code
from closeranks.checkpoint.intervals import interval
from closeranks.checkpoint.pending import Pending
from closeranks.checkpoint.values import PerRank, Shard

__all__ = ["Checkpointer", "Code", "Pending", "PerRank", "Shard", "interval"]
