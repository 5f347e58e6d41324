"""What comes late to the number of a communicator that was freed, see docs/faults.md."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT, Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = str(ROOT / "docs" / "limits" / "freed.py")


@pytest.mark.parametrize("what", ["killed", "broken"])
@pytest.mark.parametrize(("free", "received"), [([], 1), (["free"], 666)], ids=["kept", "freed"])
def test_a_freed_number_takes_what_the_lost_rank_has_sent(
    launch: Launch, what: str, free: list[str], received: int
) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "8", "--", PROGRAM]
    done = launch([*command, what, *free], timeout_s=60)
    assert f"sent 1, received {received}\n" in done.stdout
