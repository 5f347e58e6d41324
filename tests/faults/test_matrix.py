"""Every window, every way to fail, on one node and on an emulated cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.faults.cells import Cell, third

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "repeat.py"
SAID = re.compile(r"(?:survivor|newcomer) (\d+): rank (\d+) of (\d+), epoch (\d+)")
SIZES = {"node": 4, "wide": 8, "lab": 8}
#: Where Open MPI 5.0.11 looks at a communicator that it has not made yet.
CRASH = "ompi_comm_revoke_local"
SUMMARY = os.environ.get("FAULTS_SUMMARY")


def _command(cell: Cell) -> list[str]:
    start = [sys.executable, "-m", "closeranks"]
    if cell.platform == "lab":
        start += ["lab", "--nodes", "4", "--per-node", "2"]
    else:
        start += ["run", "-n", str(SIZES[cell.platform])]
    start += ["--faults", "--spares", str(cell.spares), "--"]
    words = [str(PROGRAM), str(cell.nbytes), cell.algorithm, "blocking", ""]
    return [*start, sys.executable, *words]


@pytest.mark.parametrize("cell", third(), ids=lambda cell: f"{cell.platform}: {cell.name}")
def test_those_who_are_left_have_the_right_sums(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, cell: Cell
) -> None:
    monkeypatch.setenv("CLOSERANKS_FAULTS", cell.faults)
    began = time.monotonic()
    done = launch(_command(cell))
    took = time.monotonic() - began
    if CRASH in done.stdout:
        _write(cell, "the library crashed", took, done)
        pytest.xfail("Open MPI crashes where a rank dies while it makes a communicator")
    gone = () if cell.spares else cell.victims
    left = [seat for seat in range(SIZES[cell.platform]) if seat not in gone]
    said = sorted(tuple(map(int, found)) for found in SAID.findall(done.stdout))
    expected = [(seat, rank, len(left)) for rank, seat in enumerate(left)]
    epochs = {words[3] for words in said}
    is_right = [words[:3] for words in said] == expected and len(epochs) == 1
    _write(cell, min(epochs) if is_right else "FAILED", took, done)
    assert [words[:3] for words in said] == expected, done.stdout
    assert len(epochs) == 1, done.stdout


def _write(cell: Cell, end: object, took: float, done: subprocess.CompletedProcess[str]) -> None:
    """Add a line to the summary, if one is wanted."""
    if SUMMARY:
        with Path(SUMMARY).open("a") as file:
            line = f"| {cell.platform} | {cell.name} | {end} | {done.returncode} | {took:.1f} |\n"
            file.write(line)
