"""Schemes: what each worker computes in each round.

An extension point: one file a scheme.

In reading order:

* `task`: a unit of work, and its share in a sum.
* `scheme`: what every scheme has.
* `work_sharing`: the next micro-batch, in a group of workers that help.
* `one_task`: what schemes have that give a worker the same task each round.
* `uncoded`: no code, wait for all.
* `gradient_coding`: one gradient code, round by round.
* `backup`: leave out the slowest, and scale the sum of the others.
* `unequal_shares`: fewer parts for workers that are slow for good.
* `partial_repetition`: groups in which workers help each other.
* `round_limit`: what must be there before a round may end.
* `sequential`: what schemes have whose jobs take several rounds.
* `selective_repetition`: SR-SGC, repeats tasks of jobs that lack results.
* `multiplexed`: M-SGC, codes a part of the batch only.
"""

from __future__ import annotations

from closeranks.collectives.coded.schemes.backup import Backup
from closeranks.collectives.coded.schemes.gradient_coding import GradientCoding
from closeranks.collectives.coded.schemes.multiplexed import MSGC
from closeranks.collectives.coded.schemes.partial_repetition import PartialRepetition
from closeranks.collectives.coded.schemes.scheme import Scheme
from closeranks.collectives.coded.schemes.selective_repetition import SRSGC
from closeranks.collectives.coded.schemes.uncoded import Uncoded
from closeranks.collectives.coded.schemes.unequal_shares import UnequalShares

__all__ = [
    "MSGC", "SRSGC", "Backup", "GradientCoding", "PartialRepetition", "Scheme", "Uncoded",
    "UnequalShares",
]  # fmt: skip
