"""How processes have ended that say so, and what that makes of a launcher's status."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from closeranks.comms.exit import exit_report
from closeranks.jobs.launch.exit_reports import ExitReportListener, Parting, open_poll
from tests.jobs.launch.test_exit_reports import GIVEN, counted

#: Four have begun, one is dead: what the others say of it.
ACCOUNT = ("begun", "ended 1 0", *["left 0:1 4 3 0"] * 3)


@pytest.mark.parametrize(
    ("said", "ranks", "expected"),
    [
        (ACCOUNT, 4, 0),
        (("begun", *["left 0:1 4 3 0"] * 2, "left 0:1 4 3 6", "ended 1 0"), 4, 6),
        (("ended 3 0", *["left 0:3 5 4 0"] * 2, "left 0:3 0 4 0", "left 0:waits 5 4 0"), 5, 0),
        ((*ACCOUNT, "begun 4:0", "ended 4:0 0", *["left 4:0 2 2 0"] * 2), 6, 0),
        ((*ACCOUNT, "closed 2.0123abcd"), 4, 1),
        ((*ACCOUNT, "ended 1 9"), 4, 9),
    ],
)
def test_the_dead_have_no_say_where_all_others_have_spoken(
    said: tuple[str, ...], ranks: int, expected: int
) -> None:
    for votes in (counted(*said), counted(*reversed(said))):
        for status in GIVEN:
            assert votes.judge(status, ranks) == expected
            assert votes.judge(status) == votes.judge(status, ranks + 1) == status
            assert (votes.silence(status, ranks) is not None) is any("closed" in x for x in said)


@pytest.mark.parametrize(
    "said",
    [
        ACCOUNT[:-1],  # one has not ended in good order
        ("begun", *["left 0:1 4 4 0"] * 3),  # nobody has gone on without it
        ("begun", *["left 0:0 4 3 0"] * 3),
        (*ACCOUNT, "begun 4:0"),  # nobody says how others have ended
        (*ACCOUNT, "left 4:0 2 2 0"),
        (*ACCOUNT, "ended 2 0"),  # there was a later world
        (*ACCOUNT[:-1], "left 0:0 4 4 0"),
        (*ACCOUNT[:-1], "left 0:1 4 4 0"),  # another world
        (*ACCOUNT[:-1], "left 0:1 3 3 0"),
        (*ACCOUNT[:-1], "left 0:waits 4 4 0"),  # what has waited in an earlier one
        (*ACCOUNT, "left 0:1 4 3 0"),  # one too many
        ("begun", *["left 0:1 0 3 0"] * 3),  # newcomers alone
        ("begun", *["left 0:waits 4 3 0"] * 3),
    ],
)
def test_whoever_is_missing_may_be_the_one_that_failed(said: tuple[str, ...]) -> None:
    for status in GIVEN:
        for ranks in (0, 3, 4, 6):
            assert counted(*said).judge(status, ranks) == status
            assert counted(*said).silence(status, ranks) is None


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitReportListener]:
    """A poll that processes which are started know of."""
    with open_poll() as opened:
        for name, text in opened.environment.items():
            monkeypatch.setenv(name, text)
        yield opened


#: A member of four, of whom three are left; it ends as it is told.
LEAVER = """
import os, sys
from closeranks.comms.exit import exit_report
exit_report.report_opening()
exit_report.note_processes(4, 0)
exit_report.enter_world(2, 0, 0, 4)
exit_report.note_processes(int(sys.argv[1]))
exit_report.enter_world(1, 1)
exit_report.report_status_at_exit()
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(5)", 5),
        ("sys.exit('words')", 1),
        ("1 / 0", 1),
        ("sys.exit(-1)", 255),
        ("os.fork() or os._exit(9)", 0),
        ("os._exit(0)", None),
        ("os.kill(os.getpid(), 9)", None),
        ("os.fork() or sys.exit(0)\nos.wait()\nos._exit(3)", None),
        ("os.fork() or sys.exit(0)\nos.wait()\nsys.exit(3)", 3),
        ("exit_report.report_opening(); exit_report.report_status_at_exit(); os._exit(0)", None),
    ],
)
def test_the_system_says_how_a_process_ends(
    listener: ExitReportListener, end: str, status: int | None
) -> None:
    subprocess.run([sys.executable, "-c", LEAVER, "3", end], check=False, timeout=60,
                   stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    listener.judge(1)
    expected = [] if status is None else [Parting(0, 1, 4, 3, status)]
    assert list(listener.votes.left) == expected


@pytest.mark.parametrize("words", ["exit_report.report_opening()", "os.fork() and os._exit(0)"])
def test_who_may_be_another_says_nothing(listener: ExitReportListener, words: str) -> None:
    program = LEAVER.replace(
        "exit_report.report_status_at_exit()", f"{words}\nexit_report.report_status_at_exit()"
    )
    command = [sys.executable, "-c", program, "3", ""]
    subprocess.run(command, check=True, timeout=60, start_new_session=True)
    listener.judge(1)
    assert not listener.votes.left


def test_who_was_started_by_a_script_does_not_speak_for_it(listener: ExitReportListener) -> None:
    subprocess.run([sys.executable, "-c", LEAVER, "3", ""], check=True, timeout=60)
    listener.judge(1)
    assert not listener.votes.left


def test_what_the_last_ones_end_with_counts_beside_a_signal_s_status() -> None:
    votes = counted("begun", "ended 1 0", "left 0:1 3 2 0", "left 0:1 3 2 3")
    assert [votes.judge(status, 3) for status in (0, 137)] == [3, 3]
    assert counted("begun", "ended 1 0", "left 0:0 3 3 4").judge(137, 3) == 4
    assert counted("begun", "ended 1 0", "left 0:0 3 3 4", "left 0:1 3 2 0").judge(137, 3) == 0


def test_of_very_many_nobody_says_how_it_ends(listener: ExitReportListener) -> None:
    for number in (exit_report.MOST_LEAVERS, exit_report.MOST_LEAVERS + 1):
        command = [sys.executable, "-c", LEAVER, str(number), ""]
        subprocess.run(command, check=True, timeout=60, start_new_session=True)
    listener.judge(1)
    assert [one.last for one in listener.votes.left] == [exit_report.MOST_LEAVERS]
