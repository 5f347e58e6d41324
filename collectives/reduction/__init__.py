"""The package collectives.reduction."""
