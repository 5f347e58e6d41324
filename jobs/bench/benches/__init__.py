"""The benchmarks: each module registers its own, see `registration`."""
