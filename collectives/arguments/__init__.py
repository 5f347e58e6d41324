"""Arguments: what a program passes to a collective, read once into a call.

In reading order:

* ``collective_call``: one call: operation, buffers, op, root, as numbers;
* ``call_key``: the key of a call, by which everything is looked up again;
* ``call_form``: all that reading looks at, but for addresses and contents;
* ``argument_readers``: the arguments of each operation, read and checked;
* ``reduction_arguments``: the same for operations that reduce;
* ``native_handover``: a call given to the MPI library as the program made it.
"""
