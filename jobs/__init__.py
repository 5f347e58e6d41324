"""Jobs: the verbs of the command line.

Packages in the order of import; each uses only those before it:

* `launch`: ``closeranks run``.
* `lab`: ``closeranks lab``, an emulated cluster.
* `checkpoint_tools`: ``closeranks checkpoint``.
* `bench`: ``closeranks bench``.
* `tune`: ``closeranks tune``.

Modules: `demo`, `doctor`, `topology_command`, the verbs of these names.
"""
