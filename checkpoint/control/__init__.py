"""The package checkpoint.control."""
