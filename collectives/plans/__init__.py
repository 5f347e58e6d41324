"""The package collectives.plans."""
