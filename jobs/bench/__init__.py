"""The microbenchmark suite behind ``closeranks bench``.

`command` reads the command line, `suite` runs it, `collective` says what each
operation moves and what must come out, `measure` times it, `series` arranges
the separate launches that ``--vs best`` needs.
"""
