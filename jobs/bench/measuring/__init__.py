"""Shared by all benchmarks: the session, the collectives, their times."""
