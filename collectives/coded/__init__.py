"""Coded gradients: sums that do not wait for slow ranks.

Packages in the order of import; each uses only those before it:

* `codes`: which worker computes which parts, and how a sum comes back.
* `schemes`: what each worker computes in each round.
* `stragglers`: models of workers that are slow at times.
* `prediction`: how long rounds take, and which scheme is best.
"""

from __future__ import annotations

from closeranks.collectives.coded.codes import (
    CyclicRepetition,
    FractionalRepetition,
    GradientCode,
    Repetition,
)
from closeranks.collectives.coded.prediction.simulation import Result, simulate
from closeranks.collectives.coded.schemes.backup import Backup
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.schemes.unequal_shares import UnequalShares
from closeranks.collectives.coded.stragglers.arbitrary import Arbitrary
from closeranks.collectives.coded.stragglers.bursty import Bursty
from closeranks.collectives.coded.stragglers.gilbert_elliott import GilbertElliott

__all__ = [
    "Arbitrary", "Backup", "Bursty", "CyclicRepetition", "FractionalRepetition", "GilbertElliott",
    "GradientCode", "GradientCoding", "PartialRepetition", "Repetition", "Result", "Uncoded",
    "UnequalShares", "simulate",
]  # fmt: skip
