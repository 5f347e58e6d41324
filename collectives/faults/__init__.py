"""The package collectives.faults."""
