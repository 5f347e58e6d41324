"""The package comms.shm."""
