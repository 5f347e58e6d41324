"""The package comms.discovery."""
