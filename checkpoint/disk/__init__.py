"""The package checkpoint.disk."""
