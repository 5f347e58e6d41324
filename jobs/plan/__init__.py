"""``closeranks plan``: who holds what on a machine, and what it costs.

In reading order:

* `command`: the verb;
* `plan_words`: machines, links, axes, volumes and grids as they are typed;
* `placement_rows`: placements as rows and as a table;
* `placement_picture`: the best placement on its machine, beside the default.
"""
