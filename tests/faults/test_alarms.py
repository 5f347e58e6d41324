"""A signal in a vote or a recovery: nobody goes on in ignorance of what was agreed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "alarms.py"


def met(launch: Launch, case: str) -> dict[int, str]:
    """Run a case; gives what each seat met."""
    start = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch([*start, sys.executable, str(PROGRAM), case])
    said = dict(re.findall(r"^seat (\d): (.*)$", done.stdout, re.MULTILINE))
    assert said, done.stdout
    return {int(seat): words for seat, words in sorted(said.items())}


def test_what_was_agreed_holds_for_who_was_interrupted(launch: Launch) -> None:
    once = ["nothing", True, 0b1111]
    said = met(launch, "in_a_vote")
    assert said.pop(1) == str(["Alarm", True, 0b1111, *once])
    assert said == dict.fromkeys((0, 2, 3), str([*once, *once]))


def test_who_was_interrupted_hears_that_the_others_repeat_it(launch: Launch) -> None:
    said = met(launch, "in_a_vote_that_fails")
    assert said.pop(1).startswith("Revoked attempts: an attempt has failed and was left")
    once = ["nothing", True, 0b1001]
    assert said == dict.fromkeys((0, 3), str([*once, *once]))


def test_who_is_interrupted_in_a_recovery_has_given_up(launch: Launch) -> None:
    said = met(launch, "in_a_recovery")
    closed = ["allreduce: the communicator is closed", "attempts: the communicator is closed"]
    assert said.pop(1) == str(["Alarm", False, 0b1111, *closed])
    once = ["nothing", True, 0b1001]
    assert said == dict.fromkeys((0, 3), str([*once, 0b1001, once]))
