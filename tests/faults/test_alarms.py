"""A signal in a vote or a recovery: nobody goes on in ignorance of what was agreed."""

from __future__ import annotations

import re

import pytest

from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")


def met(answer: Answer) -> dict[int, str]:
    """Give what each seat met in a case."""
    said = dict(re.findall(r"^seat (\d): (.*)$", answer.text, re.MULTILINE))
    assert said, answer.whole
    return {int(seat): words for seat, words in sorted(said.items())}


@asks(Question("alarms.py", ("in_a_vote",)))
def test_what_was_agreed_holds_for_who_was_interrupted(answer: Answer) -> None:
    once = ["nothing", True, 0b1111]
    said = met(answer)
    assert said.pop(1) == str(["Alarm", True, 0b1111, *once])
    assert said == dict.fromkeys((0, 2, 3), str([*once, *once]))


@asks(Question("alarms.py", ("in_a_vote_that_fails",), dies=2))
def test_who_was_interrupted_hears_that_the_others_repeat_it(answer: Answer) -> None:
    said = met(answer)
    assert said.pop(1).startswith("Revoked attempts: an attempt has failed and was left")
    once = ["nothing", True, 0b1001]
    assert said == dict.fromkeys((0, 3), str([*once, *once]))


@asks(Question("alarms.py", ("in_a_recovery",), dies=2))
def test_who_is_interrupted_in_a_recovery_has_given_up(answer: Answer) -> None:
    said = met(answer)
    closed = ["allreduce: the communicator is closed", "attempts: the communicator is closed"]
    assert said.pop(1) == str(["Alarm", False, 0b1111, *closed])
    once = ["nothing", True, 0b1001]
    assert said == dict.fromkeys((0, 3), str([*once, 0b1001, once]))
