"""The status of a job whose ranks may die is what the survivors say."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "votes.py"


def run(launch: Launch, *words: str, start: str = "run -n 3") -> subprocess.CompletedProcess[str]:
    """Run words on three ranks, one of which may die."""
    command = [sys.executable, "-m", "closeranks", *start.split(), "--faults", "--"]
    return launch([*command, sys.executable, *words])


@pytest.mark.parametrize(
    ("case", "status", "lines"),
    [
        ("well", 0, ["seat 0: 3", "seat 1: 3", "seat 2: 3"]),
        ("survivors", 0, ["seat 1: 2", "seat 2: 2"]),
        ("one_leaves", 0, ["RuntimeError: no more coffee", "seat 0: 2", "seat 2: 2"]),
        ("all_leave", 1, ["RuntimeError: no more coffee", "PeerLost: attempts: rank 1 lost"]),
        ("all_killed", 1, ["the job had begun, and nobody is left to say how it ended"]),
        ("exits", 4, []),
        ("exits_later", 5, []),
        ("ends_below_zero", 255, ["seat 0: 3"]),
        ("dies_later", 1, ["rank 0 ended without a word after all had closed"]),
        ("opens_more", 0, ["seat 1: 2", "seat 2: 2"]),
        ("times_out", 75, ["has not ended after 2 s; exit status 75, relaunch"]),
        ("has_bad_input", 1, ["UsageError: node: no more coffee; make some"]),
    ],
)
def test_the_status_is_what_the_survivors_say(
    launch: Launch, case: str, status: int, lines: list[str]
) -> None:
    done = run(launch, str(PROGRAM), case)
    assert done.returncode == status, done.stdout
    for line in lines:
        assert line in done.stdout
    assert "has not heard" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("case", "status"), [("exits_with_spares", 4), ("exits_well_with_spares", 0)]
)
@pytest.mark.parametrize("spares", [1, 2])
def test_spares_leave_with_members_that_exit(
    launch: Launch, case: str, status: int, spares: int
) -> None:
    done = run(launch, str(PROGRAM), case, start=f"run -n 3 --spares {spares}")
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("case", "statuses", "line"),
    [
        ("dies_before_close", {1}, "PeerLost: close: rank 0 lost"),
        ("saves_and_leaves", {1}, "seat 2: saved"),
        ("first_dies_in_close", {0, 1}, "seat 2: closes"),  # 1 if another one has not met it yet
    ],
)
def test_no_spare_waits_for_who_does_not_come(
    launch: Launch, case: str, statuses: set[int], line: str
) -> None:
    began = time.monotonic()
    done = run(launch, str(PROGRAM), case, start="run -n 3 --spares 1")
    assert done.returncode in statuses, done.stdout
    assert time.monotonic() - began < 30
    assert line in done.stdout


@pytest.mark.parametrize(
    ("case", "status", "line"),
    [
        ("group_fails", 1, "seat 0: 1"),
        ("first_group_fails", 1, "seat 0: 1"),
        ("group_killed", 1, "the group of rank 2 had begun, and nobody is left"),
        ("groups_well", 0, "seat 0: 1"),
        ("newcomer_ends_well", 0, "seat 0: 2"),
        ("node_lost", 0, "seat 1: 2"),
        ("first_node_lost", 0, "seat 3: 2"),
    ],
)
def test_every_group_has_a_say(launch: Launch, case: str, status: int, line: str) -> None:
    done = run(launch, str(PROGRAM), case, start="run -n 4")
    assert done.returncode == status, done.stdout
    assert line in done.stdout
    assert "has not heard" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("case", "statuses", "line"),
    [
        ("one_exits_at_once", {0}, "seat 3: 3"),
        ("survivors_exit", {5}, "seat 3: 3"),
        ("survivors_of_a_kill_exit", {5}, "seat 3: 3"),
        ("one_more_exits_later", {3, 4}, "seat 3: 3"),  # of two the launcher knows one
        ("all_exit_at_once", {3}, ""),
        ("exits_last", {3}, ""),
        ("nobody_recovers", {3}, "seat 3: lost"),
        ("exits_first", {3}, "seat 2: 2"),
    ],
)
def test_the_status_of_the_dead_is_not_that_of_the_job(
    launch: Launch, case: str, statuses: set[int], line: str
) -> None:
    done = run(launch, str(PROGRAM), case, start="run -n 4")
    assert done.returncode in statuses, done.stdout
    assert line in done.stdout


def test_a_script_around_the_program_has_its_own_status(launch: Launch) -> None:
    words = f"{sys.executable} {PROGRAM} one_exits_at_once && exit 6"
    command = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*command, "sh", "-c", words])
    assert done.returncode in (3, 6), done.stdout  # of two the launcher knows one
    assert "seat 3: 3" in done.stdout


def test_spares_that_wait_are_no_reason_to_doubt(launch: Launch) -> None:
    done = run(launch, str(PROGRAM), "takes_its_seat", start="run -n 3 --spares 2")
    assert done.returncode == 0, done.stdout
    assert "seat 1: 3" in done.stdout


def test_who_gives_up_in_a_recovery_is_lost_to_who_goes_on(launch: Launch) -> None:
    done = run(launch, str(PROGRAM.parent / "gives_up.py"))
    assert done.returncode == 0, done.stdout
    assert "seat 2 of 3, epoch 1" in done.stdout
    assert "RuntimeError: no more coffee" in done.stdout


def test_so_is_that_of_a_fault_on_purpose(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOSERANKS_FAULTS", "exit seat=1 step=1 status=3")
    words = (
        "import closeranks as cr\n"
        "with cr.init(on_failure='shrink') as comm:\n"
        "    while comm.epoch == 0:\n"
        "        for attempt in comm.attempts():\n"
        "            with attempt: comm.allreduce(1)\n"
    )
    done = run(launch, "-c", words)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("start", ["run -n 3", "lab --nodes 2 --per-node 2 --no-check"])
def test_an_abort_ends_all_ranks_with_its_status(launch: Launch, start: str) -> None:
    began = time.monotonic()
    done = run(launch, str(PROGRAM), "aborts", start=start)
    assert done.returncode == 9, done.stdout
    assert time.monotonic() - began < 30
    assert "seat 1: aborts" in done.stdout
    assert "went on" not in done.stdout


@pytest.mark.parametrize("status", [0, 3])
def test_who_opens_no_communicator_has_no_vote(launch: Launch, status: int) -> None:
    done = run(launch, "-c", f"from mpi4py import MPI; raise SystemExit({status})")
    assert done.returncode == status, done.stdout


def test_without_faults_an_abort_is_the_library_s_own(launch: Launch) -> None:
    words = "import closeranks as cr; comm = cr.init(); comm.rank or comm.Abort(7); comm.Barrier()"
    command = [sys.executable, "-m", "closeranks", "run", "-n", "2", "--", sys.executable]
    done = launch([*command, "-c", words])
    assert done.returncode == 7, done.stdout
    assert "CLOSERANKS_VOTES" not in done.stdout
