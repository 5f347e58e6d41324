"""The package comms.jit."""
