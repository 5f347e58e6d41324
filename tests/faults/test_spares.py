"""Spares take the seats of the dead."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Launch
from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "repeat.py"
SAID = re.compile(r"(survivor|newcomer) (\d+): rank (\d+) of (\d+), epoch (\d+), (\d+) newcomers")


def repeat(
    kills: str,
    dies: int,
    *,
    spares: int = 1,
    form: str = "blocking",
    more: str = "",
    job: str = "faults",
) -> Question:
    """Ask for sums in a form, while these ranks die and are replaced."""
    words = "65536", "auto", form, kills, *filter(None, [more])
    return Question("repeat.py", words, ranks=4 + spares, dies=dies, spares=spares,
                    recruits=bool(more), job=job)  # fmt: skip


def said_by(answer: Answer) -> list[tuple[str, ...]]:
    """Give what each member said, by rank."""
    assert answer.status == 0, answer.whole
    said = sorted(SAID.findall(answer.text), key=lambda found: int(found[2]))
    assert said, answer.whole
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


#: What dies, how many do, options of `repeat`, and who is new at the end, after how many
#: recoveries.
SEATS: dict[str, tuple[str, int, dict[str, Any], int, tuple[int, ...]]] = {
    "blocking": ("2@20", 1, {}, 1, (2,)),
    "in place": ("2@20", 1, {"form": "in place"}, 1, (2,)),
    "request": ("2@20", 1, {"form": "request"}, 1, (2,)),
    "one after the other, the first of all too": ("0@10,3@20:after", 2, {"spares": 2}, 2, (0, 3)),
    "new process": ("2@20", 1, {"spares": 0, "more": "recruits"}, 1, (2,)),
    "new processes": ("0@10,3@20:after", 2, {"spares": 0, "more": "recruits"}, 2, (0, 3)),
    "later than new processes": (
        "0@10,3@20:after", 2, {"spares": 0, "more": "late", "job": "alone"}, 2, (0, 3)),
    "the spare, then a new process": ("1@10,2@10", 2, {"more": "recruits"}, 1, (1, 2)),
    "nobody dies": ("", 0, {"spares": 2}, 0, ()),
}  # fmt: skip


@pytest.mark.share(9)
@pytest.mark.parametrize("case", SEATS)
@asks(lambda case: repeat(*SEATS[case][:2], **SEATS[case][2]))
def test_seats_are_taken(answer: Answer, case: str) -> None:
    *_, epoch, newcomers = SEATS[case]
    assert said_by(answer) == members(4, epoch, newcomers)


@asks(repeat("1@20,2@20", 2, spares=3))
def test_two_at_once(answer: Answer) -> None:
    said = said_by(answer)
    assert [words[:4] for words in said] == [words[:4] for words in members(4, 1, (1, 2))]


@asks(repeat("1@10,2@20", 2))
def test_without_spares_left_the_others_go_on(answer: Answer) -> None:
    assert [words[:4] for words in said_by(answer)] == [
        ("survivor", "0", "0", "3"),
        ("newcomer", "1", "1", "3"),
        ("survivor", "3", "2", "3"),
    ]


@pytest.mark.parametrize(
    ("way", "spares"), [("twice", 3), ("child", 3), ("failed", 4), ("later", 3)]
)
@asks(
    lambda way, spares: Question(
        "two_states.py", (way,), ranks=4 + spares, dies=spares, spares=spares
    )
)
def test_newcomers_outvote_nobody_in_a_second_state(answer: Answer, way: str, spares: int) -> None:
    assert sorted(re.findall(r"seat \d: .*", answer.text)) == [
        f"seat {seat}: step 4, sum 4" for seat in range(4)
    ], answer.whole


@asks(repeat("2@20", 1, spares=0, more="slow", job="alone"))
def test_a_program_may_take_longer_to_start_than_a_recovery_may(answer: Answer) -> None:
    assert said_by(answer) == members(4, 1, (2,))


def recruit(program: str, *words: str, dies: int, ranks: int = 4) -> Question:
    """Ask a program whose dead are replaced by new processes."""
    return Question(program, words, ranks=ranks, dies=dies, recruits=True)


@asks(recruit("newcomer_dies.py", dies=2))
def test_of_two_that_came_together_one_may_die_alone(answer: Answer) -> None:
    assert sorted(set(re.findall(r"seat \d of 4: .*", answer.text))) == [
        f"seat {seat} of 4: 0 2 1 0" for seat in range(4)
    ], answer.whole


@pytest.mark.parametrize(
    ("seat", "after_s"), [(0, 0.05), (1, 0.2), (3, 0.5), (0, 0.7)], ids=lambda given: f"{given}"
)
@asks(lambda seat, after_s: recruit("second_dies.py", str(seat), str(after_s), dies=2))
def test_a_second_may_die_while_a_new_one_is_started(
    answer: Answer, seat: int, after_s: float
) -> None:
    came = " ".join(str(int(other in (seat, 2))) for other in range(4))
    assert sorted(set(re.findall(r"seat \d of 4: .*", answer.text))) == [
        f"seat {other} of 4: {came}" for other in range(4)
    ], answer.whole
    assert answer.status == 0


@pytest.mark.parametrize("seat", [0, 3])
@asks(lambda seat: recruit("second_dies.py", str(seat), "told", dies=2))
def test_who_dies_when_all_have_told_what_they_run_lets_nobody_come_in_vain(
    answer: Answer, seat: int
) -> None:
    came = " ".join(str(int(other in (seat, 2))) for other in range(4))
    assert sorted(set(re.findall(r"seat \d of 4: .*", answer.text))) == [
        f"seat {other} of 4: {came}" for other in range(4)
    ], answer.whole
    assert "for 2 that have died did not join" not in answer.whole


@pytest.mark.parametrize("seat", [0, 3])
@asks(lambda seat: recruit("merge_fails.py", str(seat), dies=1))
def test_who_gets_no_newcomer_keeps_nobody_waiting(answer: Answer, seat: int) -> None:
    assert sorted(set(re.findall(r"seat \d of 4, .*", answer.text))) == [
        f"seat {seat} of 4, 1 newcomers" for seat in range(4)
    ], answer.whole


@asks(recruit("comes_in_vain.py", dies=1, ranks=3))
def test_newcomers_that_come_in_vain_are_given_up(answer: Answer) -> None:
    assert sorted(set(re.findall(r"seat \d of \d, .*", answer.text))) == [
        "seat 0 of 2, epoch 4",
        "seat 2 of 2, epoch 4",
    ], answer.whole
    assert answer.text.count("RuntimeError: no more coffee") == 3
    none = "no new process in the place of 1 that have died: those of 3"
    assert answer.whole.count(none) == 1
    assert answer.status == 0


@asks(recruit("goes_away.py", dies=1, ranks=3))
def test_new_ones_begin_where_the_program_began(answer: Answer) -> None:
    assert sorted(set(re.findall(r"seat \d of 3, .*", answer.text))) == [
        f"seat {seat} of 3, joined: {seat == 1}" for seat in range(3)
    ], answer.whole


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


@asks(recruit("unlike.py", "hidden", dies=1, ranks=3))
def test_who_cannot_read_where_it_was_started_keeps_nobody_waiting(answer: Answer) -> None:
    assert sorted(re.findall(r"seat \d of \d", answer.text)) == ["seat 0 of 2", "seat 2 of 2"], (
        answer.whole
    )
    assert answer.whole.count("rank 1 what cannot be read (/proc/self/environ)") == 1, answer.whole


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
    start = [sys.executable, "-m", "closeranks", "lab", "--nodes", "3", "--per-node", "2"]
    start += ["--no-check", "--faults", "--spares", "2", "--", sys.executable, str(PROGRAM)]
    done = launch([*start, "65536", "auto", "blocking", "2@20,3@20"])
    said = said_by(Answer(done.stdout, done.returncode, done.stdout))  # in one recovery or two
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


@pytest.mark.parametrize("spares", [0, 1])
@asks(
    lambda spares: Question(
        "two_sites.py", ranks=4 + spares, dies=1, spares=spares, recruits=not spares
    )
)
def test_newcomers_sit_where_the_program_says_that_their_seats_are(
    answer: Answer, spares: int
) -> None:
    places = "('site', 'rank') [[0, 0, 1, 1], [0, 1, 2, 3]]"
    expected = {f"seat {seat} {seat == 1} {places}" for seat in range(4)}
    found = set(re.findall(r"^seat .*$", answer.text, re.MULTILINE))
    assert found == expected, answer.whole
