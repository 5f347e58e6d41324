"""Programs that end MPI in their own way: quietly, with all values there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

PROGRAM = str(Path(__file__).parent / "ending.py")


@pytest.mark.parametrize("how", ["handler", "finalize"])
@pytest.mark.usefixtures("mpi_library")
def test_nothing_of_ours_outlives_mpi(launch: Launch, how: str) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "2", "--"]
    done = launch([*start, sys.executable, PROGRAM, how], timeout_s=110)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("sum 2") == 2, done.stdout
