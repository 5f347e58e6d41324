"""Prediction: how long rounds take, and which scheme is best.

In reading order:

* `round_ends`: when a round ends.
* `helping`: a round of a group whose workers help each other.
* `carry_over`: rounds one after the other, where late workers take time along.
* `late_patterns`: which rounds wait for all, by the authors' rule.
* `deadline_rule`: rounds that end at a multiple of the fastest worker's time.
* `simulation`: `simulate`, and what it finds.
* `block_means`: how sure a mean is.
* `candidates`: schemes that might be best.
* `tuning`: `tune`, which chooses one.
* `paper_comparison`: schemes with their best parameters, as in the paper.
"""

from __future__ import annotations

from closeranks.collectives.coded.prediction.simulation import Result, simulate
from closeranks.collectives.coded.prediction.tuning import CandidateTable, tune

__all__ = ["CandidateTable", "Result", "simulate", "tune"]
