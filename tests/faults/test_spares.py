"""Spares take the seats of the dead."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "repeat.py"
SAID = re.compile(r"(survivor|newcomer) (\d+): rank (\d+) of (\d+), epoch (\d+), (\d+) newcomers")


def replace(
    launch: Launch, kills: str, *start: str, spares: int = 1, form: str = "blocking", more: str = ""
) -> list[tuple[str, ...]]:
    """Run the program; gives what each member said, by rank."""
    start = start or ("run", "-n", "4")
    command = [sys.executable, "-m", "closeranks", *start, "--faults", "--spares", str(spares)]
    words = [sys.executable, str(PROGRAM), "65536", "auto", form, kills, more]
    done = launch([*command, "--", *words])
    assert done.returncode == 0, done.stdout
    said = sorted(SAID.findall(done.stdout), key=lambda found: int(found[2]))
    assert said, done.stdout
    return said


def members(number: int, epoch: int, newcomers: tuple[int, ...]) -> list[tuple[str, ...]]:
    """What all say if everybody sits in the own seat."""
    return [
        (
            "newcomer" if seat in newcomers else "survivor",
            *map(str, (seat, seat, number, epoch, len(newcomers))),
        )
        for seat in range(number)
    ]


#: What dies, options of `replace`, and who is new at the end, after how many recoveries.
SEATS: dict[str, tuple[str, dict[str, Any], int, tuple[int, ...]]] = {
    "blocking": ("2@20", {}, 1, (2,)),
    "in place": ("2@20", {"form": "in place"}, 1, (2,)),
    "request": ("2@20", {"form": "request"}, 1, (2,)),
    "one after the other, the first of all too": ("0@10,3@20:after", {"spares": 2}, 2, (0, 3)),
    "new process": ("2@20", {"spares": 0, "more": "recruits"}, 1, (2,)),
    "new processes": ("0@10,3@20:after", {"spares": 0, "more": "recruits"}, 2, (0, 3)),
    "later than new processes": ("0@10,3@20:after", {"spares": 0, "more": "late"}, 2, (0, 3)),
    "the spare, then a new process": ("1@10,2@10", {"more": "recruits"}, 1, (1, 2)),
    "nobody dies": ("", {"spares": 2}, 0, ()),
}


@pytest.mark.share(3)
@pytest.mark.parametrize("case", SEATS)
def test_seats_are_taken(launch: Launch, case: str) -> None:
    kills, options, epoch, newcomers = SEATS[case]
    assert replace(launch, kills, **options) == members(4, epoch, newcomers)


def test_two_at_once(launch: Launch) -> None:
    said = replace(launch, "1@20,2@20", spares=3)
    assert [words[:4] for words in said] == [words[:4] for words in members(4, 1, (1, 2))]


def test_without_spares_left_the_others_go_on(launch: Launch) -> None:
    said = replace(launch, "1@10,2@20")
    assert [words[:4] for words in said] == [
        ("survivor", "0", "0", "3"),
        ("newcomer", "1", "1", "3"),
        ("survivor", "3", "2", "3"),
    ]


@pytest.mark.parametrize(
    ("way", "spares"), [("twice", 3), ("child", 3), ("failed", 4), ("later", 3)]
)
def test_newcomers_outvote_nobody_in_a_second_state(launch: Launch, way: str, spares: int) -> None:
    program = str(PROGRAM.parent / "two_states.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults"]
    done = launch([*start, "--spares", str(spares), "--", sys.executable, program, way])
    assert sorted(re.findall(r"seat \d: .*", done.stdout)) == [
        f"seat {seat}: step 4, sum 4" for seat in range(4)
    ], done.stdout


def test_a_program_may_take_longer_to_start_than_a_recovery_may(launch: Launch) -> None:
    assert replace(launch, "2@20", spares=0, more="slow") == members(4, 1, (2,))


def test_of_two_that_came_together_one_may_die_alone(launch: Launch) -> None:
    program = str(PROGRAM.parent / "newcomer_dies.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, program])
    assert sorted(set(re.findall(r"seat \d of 4: .*", done.stdout))) == [
        f"seat {seat} of 4: 0 2 1 0" for seat in range(4)
    ], done.stdout


@pytest.mark.parametrize(
    ("seat", "after_s"), [(0, 0.05), (1, 0.2), (3, 0.5), (0, 0.7)], ids=lambda given: f"{given}"
)
def test_a_second_may_die_while_a_new_one_is_started(
    launch: Launch, seat: int, after_s: float
) -> None:
    program = str(PROGRAM.parent / "second_dies.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, program, str(seat), str(after_s)])
    came = " ".join(str(int(other in (seat, 2))) for other in range(4))
    assert sorted(set(re.findall(r"seat \d of 4: .*", done.stdout))) == [
        f"seat {other} of 4: {came}" for other in range(4)
    ], done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize("seat", [0, 3])
def test_who_dies_when_all_have_told_what_they_run_lets_nobody_come_in_vain(
    launch: Launch, seat: int
) -> None:
    program = str(PROGRAM.parent / "second_dies.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, program, str(seat), "told"])
    came = " ".join(str(int(other in (seat, 2))) for other in range(4))
    assert sorted(set(re.findall(r"seat \d of 4: .*", done.stdout))) == [
        f"seat {other} of 4: {came}" for other in range(4)
    ], done.stdout
    assert "did not join" not in done.stdout


@pytest.mark.parametrize("seat", [0, 3])
def test_who_gets_no_newcomer_keeps_nobody_waiting(launch: Launch, seat: int) -> None:
    program = str(PROGRAM.parent / "merge_fails.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "4", "--faults", "--"]
    done = launch([*start, sys.executable, program, str(seat)])
    assert sorted(set(re.findall(r"seat \d of 4, .*", done.stdout))) == [
        f"seat {seat} of 4, 1 newcomers" for seat in range(4)
    ], done.stdout


def test_newcomers_that_come_in_vain_are_given_up(launch: Launch) -> None:
    program = str(PROGRAM.parent / "comes_in_vain.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--faults", "--"]
    done = launch([*start, sys.executable, program])
    assert sorted(set(re.findall(r"seat \d of \d, .*", done.stdout))) == [
        "seat 0 of 2, epoch 4",
        "seat 2 of 2, epoch 4",
    ], done.stdout
    assert done.stdout.count("RuntimeError: no more coffee") == 3
    assert done.stdout.count("no new process in the place of 1 that have died: those of 3") == 1
    assert done.returncode == 0


def test_new_ones_begin_where_the_program_began(launch: Launch) -> None:
    program = "tests/faults/goes_away.py"  # as a user names it
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--faults", "--"]
    done = launch([*start, sys.executable, program])
    assert sorted(set(re.findall(r"seat \d of 3, .*", done.stdout))) == [
        f"seat {seat} of 3, joined: {seat == 1}" for seat in range(3)
    ], done.stdout


def test_new_ones_are_given_what_is_no_utf_8(launch: Launch, tmp_path: Path) -> None:
    odd = "caf\udce9"  # as Python reads Latin-1 in a command line
    folder = tmp_path / odd
    folder.mkdir()
    there = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(folder), sys.executable]
    program = str(PROGRAM.parent / "odd_names.py")
    start = [*there, "-m", "closeranks", "run", "-n", "3", "--faults", "--", sys.executable]
    done = launch([*start, program, odd])
    given = [(os.fsencode(odd), os.fsencode(folder), new) for new in (None, b"caf\xe8", None)]
    assert sorted(re.findall(r"seat \d of 3: .*", done.stdout)) == [
        f"seat {seat} of 3: {given[seat]}" for seat in range(3)
    ], done.stdout
    assert done.returncode == 0


UNLIKE = str(PROGRAM.parent / "unlike.py")


def test_new_ones_have_the_variables_that_all_have_alike(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "still here")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--faults", "--"]
    done = launch([*start, "env", "WRAPPED=1", sys.executable, UNLIKE, "all"])
    given = (None, "all", None, "1")  # the last one was started by new ones
    assert sorted(re.findall(r"seat \d of 3: .*", done.stdout)) == [
        f"seat {seat} of 3: {given}" for seat in range(3)
    ], done.stdout


def unlike(launch: Launch, *words: str) -> str:
    """Start ranks of which the last has an argument of its own; gives what was said."""
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--faults", "--"]
    mine = 'case $OMPI_COMM_WORLD_RANK in 2) exec "$@" mine;; *) exec "$@";; esac'
    return launch([*start, "/bin/sh", "-c", mine, "sh", sys.executable, UNLIKE, *words]).stdout


def test_where_ranks_run_different_programs_no_new_one_takes_a_seat(launch: Launch) -> None:
    said = unlike(launch)
    assert sorted(re.findall(r"seat \d of \d", said)) == ["seat 0 of 2", "seat 2 of 2"], said
    assert said.count("no new process in the place of 1 that have died") == 1, said
    assert re.search(r"rank 0 runs .*unlike.py'\] in .*, rank 1 .*unlike.py', 'mine'\] in", said), (
        said
    )


def test_who_cannot_read_where_it_was_started_keeps_nobody_waiting(launch: Launch) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--faults", "--"]
    said = launch([*start, sys.executable, UNLIKE, "hidden"]).stdout
    assert sorted(re.findall(r"seat \d of \d", said)) == ["seat 0 of 2", "seat 2 of 2"], said
    assert said.count("rank 1 what cannot be read (/proc/self/environ)") == 1, said


def test_who_asks_for_new_processes_has_to_run_one_program(launch: Launch) -> None:
    said = unlike(launch, "asks")
    refused = r"Disagreement: init: ranks disagree: .*, program=.* 'asks', 'mine'\], "
    assert len(re.findall(refused, said)) == 3, said


def test_no_file_stays_open(launch: Launch) -> None:
    program = str(PROGRAM.parent / "open_files.py")
    start = [sys.executable, "-m", "closeranks", "run", "-n", "3", "--faults", "--"]
    done = launch([*start, sys.executable, program])
    said = re.search(r"open files: \[(.*)\]", done.stdout)
    assert said, done.stdout
    counts = [int(word) for word in said[1].split(", ")]
    assert len(counts) == 4
    assert len(set(counts)) == 1, counts


def test_nobody_comes_where_nobody_can(launch: Launch) -> None:
    start = [sys.executable, "-m", "closeranks", "lab", "--nodes", "2", "--per-node", "1"]
    asks = "import closeranks as cr; cr.init(recruits=True, on_failure='replace')"
    done = launch([*start, "--no-check", "--faults", "--", sys.executable, "-c", asks])
    assert "new processes in the place of the dead" in done.stdout
    assert "start the job on one node by closeranks run --faults" in done.stdout


def test_on_an_emulated_cluster(launch: Launch) -> None:
    start = ("lab", "--nodes", "3", "--per-node", "2", "--no-check")
    said = replace(launch, "2@20,3@20", *start, spares=2)  # in one recovery or two
    assert [words[:4] for words in said] == [words[:4] for words in members(6, 1, (2, 3))]


def test_spares_without_faults_are_refused(launch: Launch) -> None:
    done = launch([sys.executable, "-m", "closeranks", "run", "-n", "1", "--spares", "1", "true"])
    assert done.returncode == 2
    assert "add --faults" in done.stdout


def test_a_newcomer_elsewhere_chooses_as_those_who_stayed(launch: Launch) -> None:
    program = [sys.executable, str(Path(__file__).parent / "moved.py")]
    lab = [sys.executable, "-m", "closeranks", "lab", "--faults", "--nodes", "2", "--per-node", "2"]
    done = launch([*lab, "--spares", "1", "--", *program])
    assert done.returncode == 0, done.stdout
    assert "epoch 1, 4 members" in done.stdout


#: Its ranks sit where the program says, on two sites.
GIVEN = """
import os, signal, closeranks as cr
topology = cr.Topology.regular(site=2, rank=2)
with cr.init(on_failure="replace", topology=topology) as comm:
    for attempt in comm.attempts():
        with attempt:
            if comm.seat == 1 and not comm.joined:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.allreduce(1)
    print("seat", comm.seat, comm.joined, comm.hierarchy.levels, comm.hierarchy.groups.tolist())
"""


@pytest.mark.parametrize("spares", [0, 1])
def test_newcomers_sit_where_the_program_says_that_their_seats_are(
    launch: Launch, spares: int
) -> None:
    start = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--spares"]
    done = launch([*start, str(spares), "--", sys.executable, "-c", GIVEN])
    places = "('site', 'rank') [[0, 0, 1, 1], [0, 1, 2, 3]]"
    expected = {f"seat {seat} {seat == 1} {places}" for seat in range(4)}
    assert set(re.findall(r"^seat .*$", done.stdout, re.MULTILINE)) == expected, done.stdout
