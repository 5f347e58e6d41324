"""Coded gradients: sums that do not wait for slow ranks.

Packages in the order of import; each uses only those before it:

* `codes`: which worker computes which parts, and how a sum comes back.
* `schemes`: what each worker computes in each round.
"""

from __future__ import annotations

from closeranks.collectives.coded.codes import (
    CyclicRepetition,
    FractionalRepetition,
    GradientCode,
    Repetition,
)
from closeranks.collectives.coded.schemes.backup import Backup
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.schemes.unequal_shares import UnequalShares

__all__ = [
    "Backup", "CyclicRepetition", "FractionalRepetition", "GradientCode", "GradientCoding",
    "PartialRepetition", "Repetition", "Uncoded", "UnequalShares",
]  # fmt: skip
