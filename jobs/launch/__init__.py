"""The package jobs.launch."""
