"""The package checkpoint.memory."""
