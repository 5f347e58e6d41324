"""A rank that dies in a round of a coded sum of several nodes: the others go on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cluster.child import closeranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

PROGRAM = Path(__file__).parents[1] / "faults/coded_dies.py"
#: What the rank does when it dies.  "locked": it keeps others of its node from a slot.
WHEN = ("computing", "waiting", "telling", "locked", "decided", "sending", "late", "closing")


@pytest.mark.share(16)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("scheme", ["partial", "repetition"])
def test_the_others_go_on(scheme: str, when: str) -> None:
    lab = ("lab", "--faults", "--nodes", "2", "--per-node", "2")
    done = closeranks(*lab, "--", sys.executable, str(PROGRAM), scheme, when)
    for seat in (0, 2, 3):
        assert re.search(rf"^seat {seat}: of 0, 2, 3, 50 turns", done.stdout, re.MULTILINE), (
            done.stdout + done.stderr
        )
    assert done.returncode == 0, done.stderr
