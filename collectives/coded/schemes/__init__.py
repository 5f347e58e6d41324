"""Schemes: what each worker computes in each round.

An extension point: one file a scheme.

In reading order:

* `task`: a unit of work, and its share in a sum.
* `scheme`: what every scheme has.
* `work_sharing`: the next micro-batch, in a group of workers that help.
"""
