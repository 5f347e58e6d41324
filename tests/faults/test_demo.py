"""The demo's second act: a rank dies, and the weights are the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch


@pytest.mark.slow
@pytest.mark.parametrize("epochs", ["4", "1"])
def test_the_demo_loses_a_rank_and_learns_as_much(
    launch: Launch, mpi_library: str, tmp_path: Path, epochs: str
) -> None:
    pytest.importorskip("sklearn")
    path = tmp_path / "demo.json"
    command = [sys.executable, "-m", "closeranks", "demo", "-n", "3", "--epochs", epochs]
    done = launch([*command, "--json", str(path)])
    assert done.returncode == 0, done.stdout
    acts = json.loads(path.read_text())
    expected = [0] if mpi_library == "MPICH" else [0, 1]
    assert [act["lost"] for act in acts] == expected, done.stdout
    assert len({act["test_accuracy"] for act in acts}) == 1
    assert all(act["largest_difference"] <= 1e-5 for act in acts)
    assert ("2 ranks" in done.stdout) is (mpi_library != "MPICH")


@pytest.mark.slow
@pytest.mark.usefixtures("needs_open_mpi")
def test_a_rank_that_is_alone_does_not_die(launch: Launch) -> None:
    pytest.importorskip("sklearn")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "1", "--"]
    done = launch([*command, "closeranks", "demo", "--epochs", "1"])
    assert done.returncode == 0, done.stdout
    assert "no rank dies: it takes two" in done.stdout
