"""What a rank has forked takes no communicator from anybody, and ends."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

PROGRAM = str(Path(__file__).parent / "forks.py")
CODED = str(Path(__file__).parent / "coded_forks.py")


@pytest.mark.parametrize("more", [[], ["--faults"]], ids=["plain", "faults"])
@pytest.mark.usefixtures("needs_open_mpi")
def test_a_child_that_leaves_is_no_member(launch: Launch, more: list[str]) -> None:
    start = [sys.executable, "-m", "closeranks", "run", *more, "-n", "3", "--"]
    done = launch([*start, sys.executable, PROGRAM])
    said = sorted(re.findall(r"^rank \d: .*", done.stdout, re.MULTILINE))
    ends: tuple[list[int], ...] = ([], [1, 3, 1, 0, 0], [])
    expected = [f"rank {rank}: 3 [0, 2, 4] {ended}" for rank, ended in enumerate(ends)]
    assert said == expected, done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("more", [[], ["--faults"]], ids=["plain", "faults"])
@pytest.mark.usefixtures("needs_open_mpi")
def test_a_child_ends_no_round_of_a_coded_sum(launch: Launch, more: list[str]) -> None:
    start = [sys.executable, "-m", "closeranks", "run", *more, "-n", "3", "--"]
    done = launch([*start, sys.executable, CODED])
    said = sorted(re.findall(r"^rank \d: .*", done.stdout, re.MULTILINE))
    ends: tuple[list[int], ...] = ([], [0, 3, 3], [0, 5])
    assert said == [f"rank {rank}: 7 7 {ended}" for rank, ended in enumerate(ends)], done.stdout
    assert done.returncode == 0, done.stdout
