"""The package comms.topology."""
