"""``closeranks tune``: measures stages, and writes what `init` reads."""
