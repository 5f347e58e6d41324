"""Collectives: plans, the choice of one, the engine that runs it, `Communicator`.

`plan`, `simulate` and `cost` work without MPI, on any topology; the
communicator and its operations are imported when they are first asked for.

Packages in the order of import; each uses only those before it:

* `plans`: the steps of a collective, as data.
* `pairs`: index-value pairs in messages.
* `builders`: the algorithms, which make plans.
* `analysis`: simulation, races and prices of plans.
* `reduction`: MPI ops on memory of this process.
* `arguments`: the arguments of a call, read and checked.
* `selection`: the choice of an algorithm.
* `shm`: kernels in node memory.
* `engine`: runs plans.
* `refill`: bound plans that serve calls of many counts.
* `fastpath`: machine code for calls that were seen before.
* `dispatch`: one call, from its arguments to the library or a plan.
* `faults`: attempts and recovery.
* `replicated`: a state of all ranks, compared and repaired.
* `communicator`: `Communicator` and `init`.
* `sparse`: sums of sparse vectors.
* `coded`: sums of gradients that do not wait for slow ranks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from closeranks.collectives.analysis.cost_model import Cost, cost
from closeranks.collectives.analysis.simulation import simulate
from closeranks.collectives.builders.catalogue import algorithms
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.reduction.op import MEAN
from closeranks.collectives.selection.planner import plan

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator

__all__ = ["MEAN", "Communicator", "Cost", "Plan", "algorithms", "cost", "plan", "simulate"]


def __getattr__(name: str) -> object:
    """Import what needs MPI when it is first asked for."""
    if name != "Communicator":
        raise AttributeError(f"module 'closeranks.collectives' has no attribute {name!r}")
    value: object = import_module("closeranks.collectives.communicator.communicator").Communicator
    globals()[name] = value
    return value
