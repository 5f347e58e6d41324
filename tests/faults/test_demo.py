"""The demo's second act: a rank dies, and the weights are the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch


@pytest.mark.slow
def test_the_demo_loses_a_rank_and_learns_as_much(
    launch: Launch, mpi_library: str, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    path = tmp_path / "demo.json"
    command = [sys.executable, "-m", "closeranks", "demo", "-n", "3", "--epochs", "4"]
    done = launch([*command, "--json", str(path)])
    assert done.returncode == 0, done.stdout
    acts = json.loads(path.read_text())
    expected = [0] if mpi_library == "MPICH" else [0, 1]
    assert [act["lost"] for act in acts] == expected, done.stdout
    assert len({act["test_accuracy"] for act in acts}) == 1
    assert all(act["largest_difference"] <= 1e-5 for act in acts)
    assert ("2 ranks" in done.stdout) is (mpi_library != "MPICH")
