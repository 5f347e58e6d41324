"""Gradient codes: the sum of all parts from the vectors of some workers.

An extension point: one file a family of codes.

In reading order:

* `worker_set`: which workers have finished, as the caller may give it.
* `gradient_code`: what every code has.
* `group_code`: codes whose workers form groups.
* `repetition`: `Repetition` and `FractionalRepetition`.
* `cyclic`: `CyclicRepetition`.
"""

from __future__ import annotations

from closeranks.collectives.coded.codes.cyclic import CyclicRepetition
from closeranks.collectives.coded.codes.gradient_code import GradientCode
from closeranks.collectives.coded.codes.repetition import FractionalRepetition, Repetition

__all__ = ["CyclicRepetition", "FractionalRepetition", "GradientCode", "Repetition"]
