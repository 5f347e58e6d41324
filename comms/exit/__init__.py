"""The package comms.exit."""
