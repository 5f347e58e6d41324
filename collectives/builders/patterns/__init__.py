"""The package collectives.builders.patterns."""
