"""Coded gradients: sums that do not wait for slow ranks.

Packages in the order of import; each uses only those before it:

* `codes`: which worker computes which parts, and how a sum comes back.
* `schemes`: what each worker computes in each round.
* `stragglers`: how slow workers are: models, and traces of real runs.
* `prediction`: how long rounds take, and which scheme fits.
* `transport`: sums on real ranks.

Codes, schemes and stragglers are each an extension point.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from closeranks.collectives.coded.codes import (
    BalancedBlockDesign,
    CommunicationEfficient,
    CyclicMDS,
    CyclicRepetition,
    Expander,
    FractionalRepetition,
    GradientCode,
    Repetition,
    Tree,
)
from closeranks.collectives.coded.prediction import CandidateTable, Result, simulate, tune
from closeranks.collectives.coded.schemes import (
    MSGC,
    SRSGC,
    Backup,
    GradientCoding,
    PartialRepetition,
    Scheme,
    Uncoded,
    UnequalShares,
)
from closeranks.collectives.coded.stragglers import Arbitrary, Bursty, GilbertElliott, Trace

if TYPE_CHECKING:
    from closeranks.collectives.coded.transport.coded_allreduce import CodedAllreduce
    from closeranks.collectives.coded.transport.recorder import Recorder

__all__ = [
    "MSGC", "SRSGC", "Arbitrary", "Backup", "BalancedBlockDesign", "Bursty", "CandidateTable",
    "CodedAllreduce", "CommunicationEfficient", "CyclicMDS", "CyclicRepetition", "Expander",
    "FractionalRepetition", "GilbertElliott", "GradientCode", "GradientCoding",
    "PartialRepetition", "Recorder", "Repetition", "Result", "Scheme", "Trace", "Tree",
    "Uncoded", "UnequalShares", "simulate", "tune",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import what starts MPI when it is first asked for."""
    transport = "closeranks.collectives.coded.transport"
    if name == "CodedAllreduce":
        value: object = import_module(f"{transport}.coded_allreduce").CodedAllreduce
    elif name == "Recorder":
        value = import_module(f"{transport}.recorder").Recorder
    else:
        raise AttributeError(f"module 'closeranks.collectives.coded' has no attribute {name!r}")
    globals()[name] = value
    return value
