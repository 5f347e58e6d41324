"""The package comms.buffers."""
