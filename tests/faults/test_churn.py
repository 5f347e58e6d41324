"""Campaigns with real processes, one of a minute; `make churn` takes half an hour."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.faults.cells import SEED


def test_ranks_that_die_and_are_replaced(launch: Launch, mpi_library: str, tmp_path: Path) -> None:
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")
    path = tmp_path / "churn.json"
    command = [sys.executable, "-m", "closeranks", "bench", "churn", "--minutes", "0"]
    command += ["--members", "3", "--spares", "1", "--seed", "1", "--json", str(path)]
    done = launch(command, timeout_s=150)
    assert "model: 1000 episodes" in done.stdout
    (row,) = json.loads(path.read_text())
    assert (row["wrong"], row["hangs"], row["unplanned"]) == (0, 0, 0), done.stdout
    assert row["kills"] + row["stops"] == 2
    assert row["joins"] == 1


def test_a_minute_of_it(launch: Launch, mpi_library: str, tmp_path: Path) -> None:
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")
    path = tmp_path / "churn.json"
    command = [sys.executable, "-m", "closeranks", "bench", "churn", "--minutes", "1"]
    command += ["--seed", "0" if SEED == "all" else SEED, "--json", str(path)]
    done = launch(command, timeout_s=240)
    rows = json.loads(path.read_text())
    for row in rows:
        assert (row["wrong"], row["hangs"]) == (0, 0), done.stdout
    assert sum(row["kills"] + row["stops"] + row["joins"] for row in rows) > 32
