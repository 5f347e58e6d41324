"""The package collectives.engine."""
