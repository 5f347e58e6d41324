"""The package comms.mpi."""
