"""The package collectives.selection."""
