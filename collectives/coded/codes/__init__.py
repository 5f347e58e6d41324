"""Gradient codes: the sum of all parts from the vectors of some workers.

An extension point: one file a family of codes.

In reading order:

* `worker_set`: which workers have finished, as the caller may give it.
* `code_placement`: which worker runs on which node.
* `gradient_code`: what every code has.
* `group_code`: codes whose workers form groups.
* `repetition`: `Repetition` and `FractionalRepetition`.
* `tree`: `Tree`.
* `cyclic_algebra`: which sets of workers decode a cyclic code.
* `cyclic`: `CyclicRepetition` and `CyclicMDS`.
* `finite_field`, `designs`: block designs.
* `random_graph`: graphs with equally many neighbours.
* `approximate`: `BalancedBlockDesign` and `Expander`.
* `communication_efficient`: `CommunicationEfficient`, which sends less.
"""

from __future__ import annotations

from closeranks.collectives.coded.codes.approximate import BalancedBlockDesign, Expander
from closeranks.collectives.coded.codes.communication_efficient import CommunicationEfficient
from closeranks.collectives.coded.codes.cyclic import CyclicMDS, CyclicRepetition
from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.repetition import FractionalRepetition, Repetition
from closeranks.collectives.coded.codes.tree import Tree

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
