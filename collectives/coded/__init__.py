"""Coded gradients: sums that do not wait for slow ranks.

Packages in the order of import; each uses only those before it:

* `codes`: which worker computes which parts, and how a sum comes back.
* `schemes`: what each worker computes in each round.
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

__all__ = [
    "BalancedBlockDesign",
    "CommunicationEfficient",
    "CyclicMDS",
    "CyclicRepetition",
    "Expander",
    "FractionalRepetition",
    "GradientCode",
    "Repetition",
    "Tree",
]
