"""Lab: an emulated cluster on one machine, with namespaces as nodes.

In reading order:

* ``command``: ``closeranks lab``;
* ``plan``: nodes, networks and rates of a lab, as pure data;
* ``supervisor``: the life of a lab, one tree of processes;
* ``node``: one node: a process that holds its namespaces;
* ``network``: bridges, veth pairs and token buckets;
* ``scratch``: the ``/tmp`` of each node;
* ``scripts``: the shell scripts of a lab: its ssh, the start of a rank;
* ``control``: nodes killed or stopped while the lab runs.
"""
