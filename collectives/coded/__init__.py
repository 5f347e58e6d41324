"""Coded gradients: sums that do not wait for slow ranks.

Packages in the order of import; each uses only those before it:

* `codes`: which worker computes which parts, and how a sum comes back.
* `schemes`: what each worker computes in each round.
* `stragglers`: models of workers that are slow at times.
* `prediction`: how long rounds take, and which scheme is best.
"""

from __future__ import annotations

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
from closeranks.collectives.coded.prediction import (
    CandidateTable,
    Result,
    simulate,
    tune,
)
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
from closeranks.collectives.coded.stragglers import (
    Arbitrary,
    Bursty,
    GilbertElliott,
    Trace,
)

__all__ = [
    "MSGC",
    "SRSGC",
    "Arbitrary",
    "Backup",
    "BalancedBlockDesign",
    "Bursty",
    "CandidateTable",
    "CommunicationEfficient",
    "CyclicMDS",
    "CyclicRepetition",
    "Expander",
    "FractionalRepetition",
    "GilbertElliott",
    "GradientCode",
    "GradientCoding",
    "PartialRepetition",
    "Repetition",
    "Result",
    "Scheme",
    "Trace",
    "Tree",
    "Uncoded",
    "UnequalShares",
    "simulate",
    "tune",
]
