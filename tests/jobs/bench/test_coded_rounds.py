"""Rounds with slow ranks, on eight ranks: as fast as predicted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.serial
@pytest.mark.launches
@pytest.mark.slow
def test_partial_repetition_gains_what_simulate_says(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.json"
    bench = ["bench", "coded", "--real", "--rounds", "15", "--seed", "1", "--json", str(rows)]
    closeranks = [sys.executable, "-m", "closeranks"]
    done = launch([*closeranks, "run", "-n", "8", "--", *closeranks, *bench])
    assert done.returncode == 0, done.stdout
    told = {row["scheme"]: row for row in json.loads(rows.read_text())}
    found, without = told["PartialRepetition(8, 3)"], told["uncoded"]
    assert {found["wrong"], without["wrong"]} == {0}
    assert found["speedup"] >= 0.7 * without["simulated_s"] / found["simulated_s"]
