"""The package checkpoint.restore."""
