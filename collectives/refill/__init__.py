"""Refill: bound plans whose numbers are written anew for calls of other counts.

In reading order:

* ``count_plan``: the steps of a rank for all counts that share them;
* ``refilled_plan``: a bound plan of such steps;
* ``refill_layout``, ``refill_loop``: the compiled pass over its numbers.
"""
