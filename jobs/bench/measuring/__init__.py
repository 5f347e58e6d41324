"""What all benchmarks share: a session, the collectives, and their times."""
