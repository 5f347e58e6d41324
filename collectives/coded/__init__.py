"""Coded gradients: sums that do not wait for slow ranks.

Packages in the order of import; each uses only those before it:

* `codes`: which worker computes which parts, and how a sum comes back.
* `schemes`: what each worker computes in each round.

Codes and schemes are each an extension point.
"""

from __future__ import annotations

from closeranks.collectives.coded.codes import (
    CyclicRepetition,
    FractionalRepetition,
    GradientCode,
    Repetition,
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

__all__ = [
    "MSGC",
    "SRSGC",
    "Backup",
    "CyclicRepetition",
    "FractionalRepetition",
    "GradientCode",
    "GradientCoding",
    "PartialRepetition",
    "Repetition",
    "Scheme",
    "Uncoded",
    "UnequalShares",
]
