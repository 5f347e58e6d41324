"""The package checkpoint.placement."""
