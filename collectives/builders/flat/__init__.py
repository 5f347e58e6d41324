"""Collectives that look at ranks as one group: one file an operation."""
