"""The package checkpoint.saving."""
