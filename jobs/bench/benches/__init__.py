"""The package jobs.bench.benches."""
