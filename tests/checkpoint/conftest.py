"""What tests of checkpoints share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder in memory of this test alone."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as made:
        yield Path(made)
