"""The package collectives.dispatch."""
