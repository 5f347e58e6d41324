"""The package collectives.analysis."""
