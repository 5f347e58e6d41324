"""The package collectives.arguments."""
