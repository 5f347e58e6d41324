"""``closeranks stragglers``: which ranks are slow, and what would help.

In reading order:

* `command`: the verb;
* `forecast`: what a trace shows, and what schemes would take;
* `slowness_picture`: the trace as a heat map, and bars of predicted seconds.
"""
