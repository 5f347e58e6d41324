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
from tests.faults.cells import CELLS, Cell

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "repeat.py"
SAID = re.compile(r"(survivor|newcomer) (\d+): rank (\d+) of (\d+), epoch (\d+)")
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


@pytest.mark.share(42)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.platform}: {cell.name}")
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
    said = SAID.findall(done.stdout)
    world = sorted((who, *map(int, numbers)) for who, *numbers, _ in said)
    epochs = {int(words[-1]) for words in said}
    is_right = world == _expected(cell) and len(epochs) == 1 and 0 not in epochs
    is_right = is_right and done.returncode == 0
    _write(cell, min(epochs) if is_right else "FAILED", took, done)
    assert world == _expected(cell), done.stdout
    assert len(epochs) == 1, done.stdout
    assert 0 not in epochs, f"nothing has happened: {done.stdout}"
    assert done.returncode == 0, done.stdout


def _expected(cell: Cell) -> list[tuple[str, int, int, int]]:
    """Say who has which seat at the end, as which rank of how many."""
    gone = () if cell.spares else cell.victims
    left = [seat for seat in range(SIZES[cell.platform]) if seat not in gone]
    return sorted(
        ("newcomer" if seat in cell.victims else "survivor", seat, rank, len(left))
        for rank, seat in enumerate(left)
    )


def _write(cell: Cell, end: object, took: float, done: subprocess.CompletedProcess[str]) -> None:
    """Add a line to the summary, if one is wanted."""
    if SUMMARY:
        with Path(SUMMARY).open("a") as file:
            line = f"| {cell.platform} | {cell.name} | {end} | {done.returncode} | {took:.1f} |\n"
            file.write(line)
