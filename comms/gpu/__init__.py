"""The package comms.gpu."""
