"""The package jobs.bench.measuring."""
