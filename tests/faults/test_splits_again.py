"""A rank that dies in a communicator which has taken over the world of another one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")


@pytest.mark.share(3)
@pytest.mark.parametrize("when", ["call", "free", "kept"])
def test_the_survivors_split_on(launch: Launch, when: str) -> None:
    program = str(Path(__file__).with_name("splits_again.py"))
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "3", "--", program]
    done = launch([*command, when], timeout_s=60)
    assert "2 ranks, 1 kept, epoch 1\n" in done.stdout
