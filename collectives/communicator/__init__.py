"""The package collectives.communicator."""
