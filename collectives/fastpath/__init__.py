"""The package collectives.fastpath."""
