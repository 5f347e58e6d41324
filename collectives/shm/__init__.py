"""The package collectives.shm."""
