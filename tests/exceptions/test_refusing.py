"""A call that one rank refuses ends the family; one that all refuse ends nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.exceptions.test_leaving import HEARD, LEFT
from tests.pace import slowness

PROGRAM = str(Path(__file__).parent / "refusing.py")
WAYS = ("blocking", "settled", "child", "root", "I", "init", "lower", "library", "route", "chunks")
#: By which the others wait where they can be told; elsewhere they are ended.
TOLD = ("I", "init")


def _said(launch: Launch, how: str, way: str) -> tuple[int, str]:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--"]
    done = launch([*start, sys.executable, PROGRAM, how, way], timeout_s=110)
    return done.returncode, done.stdout


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.usefixtures("mpi_library")
def test_all_hear_of_a_call_that_one_rank_refuses(launch: Launch, way: str) -> None:
    status, output = _said(launch, "alone", way)
    heard, left = HEARD.findall(output), LEFT.search(output)
    assert left is not None, output
    assert all("rank 1 refused" in text for _, text in heard), output
    if way in TOLD:
        assert status == 0, output
        assert len(heard) == 3, output
        first = min(float(at) for at, _ in heard)
        assert first - float(left[1]) < slowness(), output
    elif way == "lower":  # what cannot be pickled is told in its place, and all may go on
        assert status == 0, output
        assert output.count("refused ") == output.count("done ") == 3, output
    else:
        assert len(heard) == 3 or "ends, in a call of the MPI library: rank 1 refused" in output


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.usefixtures("mpi_library")
def test_a_call_that_all_ranks_refuse_ends_nothing(launch: Launch, way: str) -> None:
    status, output = _said(launch, "all", way)
    assert status == 0, output
    assert output.count("refused ") == 9, output
    assert output.count("done ") == 3, output
