"""What votes of ranks make of a launcher's status, and who may vote."""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from closeranks.comms.exit import exit_report
from closeranks.comms.shm.node_identity import own_addresses
from closeranks.jobs.launch import exit_reports
from closeranks.jobs.launch.exit_reports import ExitReportListener, ExitReports, open_poll

LAUNCHERS = (0, 1, 3, 75, 127, 128, 137, 143, 192, 193, 255)
#: Of a failure of a program, not of a signal.
GIVEN = (1, 3, 75, 127, 193, 255)


def counted(*lines: str) -> ExitReports:
    """Count votes, one after the other."""
    votes = ExitReports()
    for line in lines:
        votes = votes.after(line.split())
    return votes


@pytest.mark.parametrize("status", LAUNCHERS)
def test_who_never_voted_ends_as_the_launcher_says(status: int) -> None:
    assert ExitReports().judge(status) == status
    assert ExitReports().silence(status) is None


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["begun"], 1),  # all are dead
        (["begun", "ended 0 0"], 0),
        (["begun", "ended 0 1", "ended 0 0", "ended 0 0"], 1),  # of the same world
        (["begun", "ended 0 1", "ended 1 0"], 0),  # who left first was lost to the others
        (["begun", "ended 3 0", "ended 2 7", "ended 10 0", "ended 9 1"], 0),
        (["begun", "ended 0 0", "ended 1 1"], 1),  # the last world failed
        (["begun", "ended 0 1", "ended 0 4"], 4),
        (["ended 0 0"], 0),
        (["begun", "begun 2:0", "ended 0 0", "ended 2:0 0"], 0),
        (["begun", "begun 2:0", "ended 1 0", "ended 2:0 1", "ended 2:0 0"], 1),  # not lost to 0
        (["begun", "begun 2:0", "ended 0 1", "ended 2:1 0"], 1),
        (["begun", "ended 0 1", "ended 1 0", "ended 2:0 1", "ended 2:3 0"], 0),
        (["ended 4 3", "ended 2:1 5", "ended 2:0 9", "ended 7:9 4"], 5),
        (["begun", "ended 0:0 1", "ended 1 0"], 0),
        (["mixed 2:0", "begun", "begun 2:0", "ended 1 0"], 0),  # 0 has lost 2
    ],
)
def test_members_of_the_last_world_say_how_it_ended(said: list[str], expected: int) -> None:
    for order in itertools.permutations(said):
        votes = counted(*order)
        for status in LAUNCHERS:
            given = status in GIVEN
            assert votes.judge(status) == (status if given else expected)
            assert (votes.silence(status) is not None) is (said == ["begun"] and not given)


@pytest.mark.parametrize(
    ("said", "silent", "expected"),
    [
        (["begun", "begun 2:0", "ended 0 0"], {2}, 1),
        (["begun", "begun 2:0", "ended 2:7 0"], {0}, 1),
        (["begun", "begun 2:0"], {0, 2}, 1),
        (["begun", "begun 2:0", "begun 4:0", "mixed 4:0", "ended 3 5"], {2}, 5),
        (["begun", "begun 2:0", "mixed 2:0"], {0, 2}, 1),  # with 0, and both are dead
    ],
)
def test_nobody_speaks_for_a_group_that_is_dead(
    said: list[str], silent: set[int], expected: int
) -> None:
    for order in itertools.permutations(said):
        votes = counted(*order)
        assert votes.silent == silent
        for status in LAUNCHERS:
            given = status in GIVEN
            assert votes.judge(status) == (status if given else expected)
            assert (votes.silence(status) is None) is given
        assert counted(*order, "overdue").judge(0) == 75
        assert counted(*order, "abort 9").judge(0) == 9


@pytest.mark.parametrize(
    ("said", "expected", "silence"),
    [
        (["closed 0.0123abcd", "ended 0 0"], 1, "rank 0 ended without a word"),
        (["closed 0.0123abcd", "closed 2.0123abcd", "ended 0 0 0.0123abcd"], 1, "rank 2 ended"),
        (["closed 0.0123abcd", "closed 1.0123abce"], 1, "ranks 0, 1 ended without a word"),
        (["closed 0.0123abcd", "ended 0 0 0.0123abcd"], 0, None),
        (["closed 0.0123abcd", "ended 2:3 4 0.0123abcd"], 4, None),
        (["closed 0.0123abcd", "again 0.0123abcd", "ended 1 0"], 0, None),
    ],
)
def test_who_has_closed_says_how_it_ends(
    said: list[str], expected: int, silence: str | None
) -> None:
    votes = counted("begun", "begun 2:0", "ended 0 0", "ended 2:0 0", *said)
    for status in LAUNCHERS:
        given = status in GIVEN
        assert votes.judge(status) == (status if given else expected)
        found = votes.silence(status)
        assert found is None if given or silence is None else silence in str(found)
    assert counted(*said, "overdue").judge(0) == 75


def test_time_outs_go_first_then_aborts() -> None:
    rest = ["begun", "ended 0 0", "ended 1 1", "ended 2 0"]
    for number in range(len(rest) + 1):
        for some in itertools.combinations(rest, number):
            for order in itertools.permutations([*some, "abort 9"]):
                assert {counted(*order).judge(status) for status in LAUNCHERS} == {9}
                late = counted(*order, "overdue")
                assert {late.judge(status) for status in LAUNCHERS} == {75}
                assert late.silence(0) is None
    assert counted("abort 9", "abort 8").judge(0) == 9
    assert counted("abort 0").judge(1) == 0


def test_who_leaves_with_the_status_of_a_time_out_is_lost_like_others() -> None:
    votes = counted("begun", "ended 0 75", "ended 1 0")
    assert not votes.timed_out
    assert votes.judge(0) == 0
    assert counted("begun", "ended 1 75", "ended 1 0").judge(0) == 75


@pytest.mark.parametrize(
    "line", ["", "began", "begun 1", "ended", "ended 1", "ended x 1", "ended x 75", "ended 0 1 2",
             "abort", "abort x", "abort 1 2", "begun :0", "begun 2:", "begun x:0", "mixed",
             "mixed 1", "ended :0 1", "ended 2: 1", "ended x:0 1", "ended 2:x 75", "ended -2:0 1",
             "ended 0 x", "closed", "closed 0", "closed 0.xyz", "again 0", "ended 0 0 0.012",
             "closed -1.0123abcd", "left", "left 0:1 4 3", "left 1 4 3 0", "left 0:1 4 0 0",
             "left 0:1 4 x 0", "left 0:1 -4 3 0", "left 0:-1 4 3 0", "left x:waits 4 3 0",
             "leaves 0:1 4 3"],
)  # fmt: skip
def test_what_is_no_vote_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"no vote|invalid literal"):
        ExitReports().after(line.split(" "))


@pytest.mark.parametrize(
    ("code", "status"),
    [(None, 0), (0, 0), (False, 0), (1, 1), (True, 1), (7, 7), (-1, 255), (256, 1), ("words", 1)],
)
def test_statuses_are_those_that_the_system_gives(code: object, status: int) -> None:
    assert exit_report.exit_status(code) == status


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitReportListener]:
    """A poll, and this process a rank that knows of it."""
    for name, value in (
        ("process", 0), ("rank", sys.maxsize), ("epoch", 0), ("group", 0), ("size", 0),
        ("named", False), ("families", 0), ("mark", ""),
    ):  # fmt: skip
        monkeypatch.setattr(exit_report._Member, name, value)
    with open_poll() as opened:
        for name, text in opened.environment.items():
            monkeypatch.setenv(name, text)
        yield opened


def test_a_rank_is_heard(listener: ExitReportListener, capfd: pytest.CaptureFixture[str]) -> None:
    exit_report.report_end(1)  # it has no seat
    assert listener.votes == ExitReports()
    exit_report.enter_world(0, 0)
    assert listener.votes == ExitReports(begun=frozenset({0}))
    exit_report.enter_world(2, 3)
    exit_report.report_end(0)
    assert listener.votes == ExitReports(begun=frozenset({0}), last={0: (3, 0)})
    assert exit_report.request_abort(300)
    assert listener.votes.aborted == 300 & 0xFF
    assert capfd.readouterr().err == ""


def test_ranks_of_this_machine_alone_are_heard_by_no_network() -> None:
    outer = own_addresses()[0]
    for here in (True, False):
        with open_poll(here=here) as opened:
            named, port, _ = opened.environment[exit_report.VARIABLE].rsplit(":", 2)
            assert (named == "127.0.0.1") is here or outer == "127.0.0.1"
            with socket.create_connection(("127.0.0.1", int(port)), timeout=2):
                pass
            if outer == "127.0.0.1":
                continue
            if here:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((outer, int(port)), timeout=2)
            else:
                socket.create_connection((outer, int(port)), timeout=2).close()


def test_of_many_ranks_only_the_first_say_that_all_is_well(listener: ExitReportListener) -> None:
    exit_report.enter_world(exit_report.SPEAKERS, 0)
    exit_report.report_end(0)
    assert listener.votes == ExitReports()
    exit_report.report_end(1)
    assert listener.votes == ExitReports(begun=frozenset({0}), last={0: (0, 1)})


def test_a_rank_votes_for_the_group_that_it_was_in_first(listener: ExitReportListener) -> None:
    exit_report.enter_world(0, 0, 2)
    exit_report.enter_world(1, 1, 2)
    assert listener.votes == ExitReports(begun=frozenset({2}))
    exit_report.enter_world(3, 0, 0)
    exit_report.report_end(4)
    votes = ExitReports(begun=frozenset({2}), mixed=frozenset({2}), last={2: (1, 4)})
    assert listener.votes == votes


@pytest.mark.parametrize("place", [(1, 0), (0, 3)])  # no name, or a newcomer
def test_only_who_gave_a_group_its_name_says_that_it_is_mixed(
    listener: ExitReportListener, place: tuple[int, int]
) -> None:
    exit_report.enter_world(*place, 2)
    exit_report.enter_world(1, 0, 0)
    assert listener.votes == ExitReports()
    exit_report.report_end(0)
    assert listener.votes == ExitReports(begun=frozenset({2}), last={2: (place[1], 0)})


@pytest.mark.parametrize(("size", "mixed"), [(2, set()), (1, set()), (4, {0})])
def test_a_group_is_mixed_with_those_outside_of_it(
    listener: ExitReportListener, size: int, mixed: set[int]
) -> None:
    exit_report.enter_world(0, 0, 0, 2)
    exit_report.enter_world(0, 0, 0, size)
    assert listener.votes == ExitReports(begun=frozenset({0}), mixed=frozenset(mixed))


def test_who_is_among_the_first_to_close_says_how_it_ends(listener: ExitReportListener) -> None:
    exit_report.enter_world(9, 0)
    for _ in range(2):  # two families
        exit_report.note_opened_family()
    exit_report.note_closed_family(0)
    assert not listener.votes.closed
    exit_report.note_closed_family(1)
    assert len(listener.votes.closed) == 1
    exit_report.report_opening()
    assert not listener.votes.closed
    exit_report.note_opened_family()
    assert exit_report.has_family()
    exit_report.note_closed_family(2)
    assert [mark[:2] for mark in listener.votes.closed] == ["2."]
    exit_report.report_end(0)
    assert not listener.votes.closed
    assert listener.votes.last == {0: (0, 0)}


def test_who_is_heard_late_takes_it_back_all_the_same(
    listener: ExitReportListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    exit_report.enter_world(0, 0)
    exit_report.note_opened_family()
    late: list[str] = []

    def unheard(words: str) -> bool:
        late.append(words)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(exit_report, "_tell", unheard)
        exit_report.note_closed_family(0)
    listener.votes = listener.votes.after(late[0].split())  # from the backlog of its socket
    exit_report.report_end(0)
    assert not listener.votes.closed
    assert listener.judge(0) == 0


def test_of_many_ranks_only_the_first_say_that_they_have_closed(
    listener: ExitReportListener,
) -> None:
    exit_report.enter_world(9, 0)
    exit_report.note_opened_family()
    exit_report.note_closed_family(exit_report.SPEAKERS)
    exit_report.report_end(0)
    assert listener.votes == ExitReports()


def test_a_child_of_a_rank_has_no_vote(
    listener: ExitReportListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    exit_report.enter_world(0, 0)
    monkeypatch.setattr(exit_report._Member, "process", exit_report._Member.process + 1)
    exit_report.report_end(1)
    assert listener.votes.last == {}


def line_to(listener: ExitReportListener, said: bytes) -> bytes:
    """Call, say something, and give the answer."""
    port = int(next(iter(listener.environment.values())).split(":")[1])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as caller:
        try:
            caller.sendall(said)
            return caller.recv(100)
        except ConnectionResetError:
            return b""


def test_strangers_are_not_heard(
    listener: ExitReportListener,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    token = next(iter(listener.environment.values())).split(":")[2].encode()
    monkeypatch.setattr(exit_reports, "_PATIENCE_S", 0.2)
    for said in (b"begun\n", b"x begun\n", b"\xff\n", b"\n", b"x" * (1 << 20), token + b" begun"):
        assert line_to(listener, said) == b""
    assert line_to(listener, token + b" ended 0 " + b"9" * 200 + b"\n") == b""
    assert line_to(listener, token + b" began\n") == b""
    assert listener.votes == ExitReports()
    assert line_to(listener, token + b" begun\n") == exit_report.HEARD


def test_callers_who_say_nothing_keep_nobody_out(
    listener: ExitReportListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_reports, "CALLERS", 4)
    port = int(next(iter(listener.environment.values())).split(":")[1])
    silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(20)]
    exit_report.enter_world(0, 0)
    assert listener.votes.begun
    assert len(listener._callers) <= 4
    for one in silent:
        one.close()


@pytest.mark.parametrize("where", ["127.0.0.1:1:x", "nonsense", "127.0.0.1:x:y", "::"])
def test_who_is_not_heard_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    monkeypatch.setenv(exit_report.VARIABLE, where)
    began = time.monotonic()
    assert not exit_report.request_abort(1)
    assert time.monotonic() - began < 5
    said = capfd.readouterr().err
    assert said.startswith("closeranks: the launcher has not heard 'abort 1'")
    assert said.count("\n") == 1


def test_a_launcher_that_says_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        where = f"127.0.0.1:{dumb.getsockname()[1]}:x"
        monkeypatch.setenv(exit_report.VARIABLE, where)
        began = time.monotonic()
        assert not exit_report.request_abort(1)
    assert time.monotonic() - began < 5
    assert "timed out" in capfd.readouterr().err


def test_without_a_launcher_that_hears_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(exit_report.VARIABLE, raising=False)
    exit_report.enter_world(0, 0)
    exit_report.report_end(1)
    assert not exit_report.request_abort(1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("say", [lambda: exit_report.request_abort(3), exit_report.report_overdue])
@pytest.mark.parametrize("program", ["sleep 60", "trap '' TERM; while :; do sleep 1; done"])
def test_an_abort_or_a_time_out_ends_the_launcher(
    listener: ExitReportListener,
    monkeypatch: pytest.MonkeyPatch,
    say: Callable[[], object],
    program: str,
) -> None:
    for name in ("_ABORT_S", "_TIMED_OUT_S", "_STUBBORN_S"):
        monkeypatch.setattr(exit_reports, name, 0.3)
    exit_report.enter_world(1, 0)
    child = subprocess.Popen(["sh", "-c", program])
    try:
        listener.attach(child)
        say()
        status = child.wait(timeout=10)
    finally:
        child.kill()
        child.wait()
    assert status < 0
    assert listener.judge(128 - status) in (3, 75)


#: Starts two processes, which end; hears of it, or does not, and stays.
BLIND = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN if sys.argv[1] == "hears" else signal.SIG_DFL)
for _ in range(2):
    os.fork() or os._exit(0)
print(flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_a_launcher_that_does_not_notice_the_end_is_ended(
    listener: ExitReportListener, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_reports, "_LOOK_S", 0.1)
    for how, stays_s, status in (("hears", "1.5", 0), ("does not", "60", -signal.SIGTERM)):
        words = [sys.executable, "-c", BLIND, how, stays_s]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as launcher:
            assert launcher.stdout is not None
            launcher.stdout.readline()
            listener.attach(launcher, starts_all=True)
            assert launcher.wait(10) == status, how
        assert ("has not noticed" in capfd.readouterr().err) == (status != 0)


def test_the_silence_of_the_dead_is_spoken_of(
    listener: ExitReportListener, capfd: pytest.CaptureFixture[str]
) -> None:
    exit_report.enter_world(0, 0)
    assert listener.judge(0) == 1
    said = capfd.readouterr().err
    assert "nobody is left to say how it ended" in said
    assert said.count("\n") == 1


def test_so_is_that_of_a_group(
    listener: ExitReportListener,
    capfd: pytest.CaptureFixture[str],
) -> None:
    exit_report.enter_world(0, 0, 2)
    listener.votes = listener.votes.after(["ended", "0", "0"])
    assert listener.judge(0) == 1
    said = capfd.readouterr().err
    assert "the group of rank 2 had begun, and nobody is left to say how it ended" in said
    assert said.count("\n") == 1
