"""The microbenchmark suite behind ``closeranks bench``.

Reading order: `command` reads the command line, `suite` runs it, `formats` and
`chart` show rows, `best_series` arranges the separate launches that ``--vs
best`` needs.  `benches` holds a module for each benchmark;
`benches.registration` says how a benchmark registers.  `measuring` times
calls, and `churn` is the campaign behind the benchmark of that name.
"""
