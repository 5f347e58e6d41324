"""A connection that breaks costs the two that it joined, on one node and between two."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT, Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = str(ROOT / "tests" / "faults" / "broken.py")
LAB = ["lab", "--faults", "--nodes", "4", "--per-node", "2", "--no-check"]


def test_who_is_left_on_a_node_goes_on(launch: Launch) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch([*start, PROGRAM, "3", "1", "0"])
    assert "3 ranks, epoch 1" in done.stdout or "2 ranks, epoch 1" in done.stdout, done.stdout


@pytest.mark.parametrize("seats", ["5 1", "5 0"])
def test_who_is_left_on_all_nodes_goes_on(launch: Launch, seats: str) -> None:
    said = launch([sys.executable, "-m", "closeranks", *LAB, "--", PROGRAM, *seats.split(), "0"])
    assert said.stdout.count("6 ranks, epoch 1") == 6, said.stdout
