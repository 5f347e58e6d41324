"""The package comms.liveness."""
