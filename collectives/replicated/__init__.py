"""The package collectives.replicated."""
