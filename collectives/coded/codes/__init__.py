"""Gradient codes: the sum of all parts from the vectors of some workers.

An extension point: one file a family of codes.

In reading order:

* `worker_set`: which workers have finished, as the caller may give it.
* `gradient_code`: what every code has.
"""
