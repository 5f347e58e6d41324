"""What becomes of a family of communicators when one of its ranks dies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.faults.kin import KINDS

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "kin.py"
GIVES_UP = {"first_calls_are_timed", "start_is_unfinished", "forsaken"}


@pytest.mark.parametrize(
    "case",
    ["freed_parent", "freed_parent_in_use", "group_of_some", "given_up", "left_by_a_death",
         "closed_in_vain", "first_calls_are_timed", "wire_is_kept", "held_methods",
         "start_is_unfinished", "counts_are_asked", "forsaken"],
)  # fmt: skip
def test_a_family_goes_on(launch: Launch, case: str) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, str(PROGRAM), case])
    left = 4 if case == "start_is_unfinished" else 3
    assert [f"seat {seat}: ok" in done.stdout for seat in range(left)] == [True] * left, done.stdout
    assert done.returncode == (1 if case in GIVES_UP else 0), done.stdout


def test_what_was_forsaken_stays_so_where_a_second_rank_dies(launch: Launch) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, str(PROGRAM), "forsaken_twice"])
    assert [f"seat {seat}: ok" in done.stdout for seat in (0, 2)] == [True, True], done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_started_before_a_recovery_is_void(launch: Launch, kind: str) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, str(PROGRAM), kind])
    assert all(f"seat {seat}: ok" in done.stdout for seat in range(3)), done.stdout
    assert done.returncode == 1, "given up"


@pytest.mark.parametrize(("case", "status"), [("made_anew", 0), ("made_once", 1)])
def test_newcomers_and_members_make_what_is_persistent_alike(
    launch: Launch, case: str, status: int
) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--spares", "1"]
    done = launch([*start, "--", sys.executable, str(PROGRAM), case])
    assert all(f"seat {seat}: ok" in done.stdout for seat in range(3)), done.stdout
    assert done.returncode == status, done.stdout
