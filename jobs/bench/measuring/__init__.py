"""Measuring: what all benchmarks share.

In reading order:

* ``session``: a request, and the ranks on which it runs;
* ``collectives``, ``collective_facts``: the collectives of the suite, with
  input, bytes moved and right result;
* ``timing``: times of calls that all ranks make together;
* ``comparison``, ``best_settings``: the library beside ours, with the settings
  that ``--vs best`` tries;
* ``compute_work``: computation while a collective is under way;
* ``network``: the wire of a lab, and counters of NICs;
* ``number_text``: numbers of a command line and of a table.
"""
