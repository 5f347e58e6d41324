"""Late messages to the id of a freed communicator, see docs/internals/faults.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

HERE = Path(__file__).parent
PROGRAM = str(ROOT / "docs" / "limits" / "freed.py")


@pytest.mark.parametrize(
    ("what", "free", "received"),
    [("killed", [], 1), ("broken", ["free"], 666), ("killed", ["free"], 666),
         ("broken", [], 1)],
)  # fmt: skip
def test_a_freed_number_takes_what_the_lost_rank_has_sent(
    launch: Launch, what: str, free: list[str], received: int
) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "8", "--", PROGRAM]
    done = launch([*command, what, *free], timeout_s=60)
    assert f"sent 1, received {received}\n" in done.stdout


@pytest.mark.parametrize(("kind", "end"), [("grid", "Free"), ("group", "Disconnect")])
def test_what_the_program_frees_after_a_death_keeps_its_number(
    launch: Launch, kind: str, end: str
) -> None:
    program = str(HERE / "frees_its_own.py")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "8", "--", program]
    done = launch([*command, kind, end], timeout_s=60)
    assert "sent 1, received 1\n" in done.stdout
