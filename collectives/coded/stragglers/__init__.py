"""Stragglers: models of workers that are slow at times.

An extension point: one file a model.

In reading order:

* `delay_factors`: factors as callers give them.
* `number_argument`: numbers as callers give them.
* `random_pattern`: patterns of late workers, read or drawn.
* `bursty`: late for a few rounds, then not for a while.
* `arbitrary`: late in some rounds of a window.
* `gilbert_elliott`: slow, and fast again, by chance.
* `trace_file`: the file of a trace.
* `trace`: factors from a trace.
* `slow_ranks`: which ranks are slow for good, and which at times.
"""

from __future__ import annotations

from closeranks.collectives.coded.stragglers.arbitrary import Arbitrary
from closeranks.collectives.coded.stragglers.bursty import Bursty
from closeranks.collectives.coded.stragglers.gilbert_elliott import GilbertElliott
from closeranks.collectives.coded.stragglers.trace import Trace

__all__ = ["Arbitrary", "Bursty", "GilbertElliott", "Trace"]
