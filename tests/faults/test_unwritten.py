"""Who leaves is killed, and keeps what it has written nevertheless."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "unwritten.py"
RANKS = 2


def leave(launch: Launch, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(RANKS), "--"]
    done = launch([*command, sys.executable, str(PROGRAM), *words])
    assert done.returncode == 1, done.stdout
    assert "both leave" in done.stdout
    return done


def test_what_was_written_is_in_its_file(launch: Launch, tmp_path: Path) -> None:
    leave(launch, str(tmp_path))
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kinds = ("text", "bytes", "stream", "log")
    assert found == {f"{kind}.{rank}": "here\n" for kind in kinds for rank in range(RANKS)}


def test_a_file_that_takes_too_long_is_not_waited_for(launch: Launch, tmp_path: Path) -> None:
    began = time.monotonic()
    leave(launch, str(tmp_path), "hangs")
    assert time.monotonic() - began < 20
