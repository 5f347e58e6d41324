"""The package checkpoint.state."""
