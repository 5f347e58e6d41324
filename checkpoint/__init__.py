"""Checkpoints: copies of a job's state in the memory of its nodes."""

from __future__ import annotations

from closeranks.checkpoint.checkpointer import Checkpointer
from closeranks.checkpoint.control.pending import Pending
from closeranks.checkpoint.control.save_schedule import interval
from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.state.shards import PerRank, Shard

__all__ = ["Checkpointer", "Code", "Pending", "PerRank", "Shard", "interval"]
