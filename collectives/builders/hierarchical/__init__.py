"""Collectives along the tree of ports: one file an operation."""
