"""Ranks die, the others go on, and every sum is that of who agreed on it."""

from __future__ import annotations

import json
import re
import sys
from itertools import product
from pathlib import Path

import pytest

from closeranks.collectives.faults.attempts import words_of
from tests.conftest import ROOT, Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "repeat.py"
FORMS = ["blocking", "in place", "request", "persistent", "child"]
#: Bytes and algorithm.
SIZES = [
    ("8", "auto"),
    ("8", "shared"),
    ("262144", "shared"),
    ("65536", "ring"),
    ("4096", "native"),
]
SAID = re.compile(r"survivor (\d+): rank (\d+) of (\d+), epoch (\d+)")


def repeat(launch: Launch, *words: str, ranks: int = 4) -> list[tuple[int, ...]]:
    """Run the program; gives what each survivor said, by seat."""
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(ranks), "--"]
    done = launch([*command, sys.executable, str(PROGRAM), *words])
    said = sorted(tuple(map(int, found)) for found in SAID.findall(done.stdout))
    assert said, done.stdout
    return said


@pytest.mark.parametrize(("form", "size"), list(product(FORMS, SIZES)))
def test_those_who_are_left_go_on(launch: Launch, form: str, size: tuple[str, str]) -> None:
    said = repeat(launch, *size, form, "2@20,1@40:after")
    assert said == [(0, 0, 2, 2), (3, 1, 2, 2)]


@pytest.mark.parametrize("form", ["request", "persistent"])
@pytest.mark.parametrize("size", [("8", "shared"), ("65536", "ring"), ("4096", "native")])
def test_a_fault_on_purpose_meets_what_is_started(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, form: str, size: tuple[str, str]
) -> None:
    monkeypatch.setenv("CLOSERANKS_FAULTS", "kill seat=2 step=20 at=allreduce")
    said = repeat(launch, *size, form, "")
    assert said == [(0, 0, 3, 1), (1, 1, 3, 1), (3, 2, 3, 1)]


def test_calls_with_objects_end_too(launch: Launch) -> None:
    assert repeat(launch, "8", "auto", "object", "2@20,1@40:after") == [(0, 0, 2, 2), (3, 1, 2, 2)]


def test_who_waits_for_what_was_lost_is_roused(launch: Launch) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch([*command, sys.executable, str(PROGRAM.with_name("unheard.py"))])
    assert sorted(set(re.findall(r"seat \d of .*", done.stdout))) == [
        f"seat {seat} of 3, attempt 2" for seat in (0, 1, 3)
    ], done.stdout
    assert done.returncode == 0


def test_who_dies_with_a_long_message_under_way_keeps_nobody(launch: Launch) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "2", "--"]
    done = launch([*command, sys.executable, str(PROGRAM.with_name("unasked.py"))])
    assert "seat 0 of 1, attempt 2" in done.stdout, done.stdout
    assert done.returncode == 0


def test_two_at_once_are_one_recovery_or_two(launch: Launch) -> None:
    said = repeat(launch, "4096", "shared", "blocking", "0@20,3@20")
    assert [words[:3] for words in said] == [(1, 0, 2), (2, 1, 2)]
    assert {words[3] for words in said} <= {1, 2}


def test_the_last_one_goes_on_alone(launch: Launch) -> None:
    assert repeat(launch, "8", "auto", "blocking", "0@10,1@20,2@30") == [(3, 0, 1, 3)]


def leave(launch: Launch, case: str, ranks: str = "-n 4") -> dict[int, str]:
    """Run a case of the other program; gives what each seat met."""
    command = [sys.executable, "-m", "closeranks", "run", "--faults", *ranks.split(), "--"]
    done = launch([*command, sys.executable, str(PROGRAM.with_name("leave.py")), case])
    said = dict(re.findall(r"^seat (\d): (.*)$", done.stdout, re.MULTILINE))
    assert said, done.stdout
    return {int(seat): words for seat, words in sorted(said.items())}


#: What each seat says at the end of a case in which a rank dies.
DEATHS: dict[str, dict[int, str]] = {
    "an_error_untold": dict.fromkeys((0, 2, 3), "(3, 2)"),
    "a_break": dict.fromkeys((0, 1, 3), "3"),
    "a_named_break": dict.fromkeys((0, 1, 3), "3"),
    "no_use": dict.fromkeys((0, 3), "[(2, 'revoked'), (1, 'revoked'), (1, '2')]"),
    "fruitless": dict.fromkeys(
        (0, 1, 3),
        "Revoked attempts: they fail again and again, though nobody is lost; see the cause",
    ),
    "before_the_loop": dict.fromkeys((0, 1, 2), "(3, (3,), 1)"),
    "messages": dict.fromkeys((0, 1, 3), "3"),
    "children": {
        0: str([0b1011, 0b0001, 0b0011, 0b0001, 0b1011]),
        1: str([0b1011, 0b1010, 0b0011, 0b1010, 0b1011]),
        3: str([0b1011, 0b1010, 0b1000, 0b1010, 0b1011]),
    },
    "topologies": {0: "[3, 1]", 1: "[0, 3]", 3: "[1, 0]"},
}


@pytest.mark.share(4)
@pytest.mark.parametrize("case", DEATHS)
def test_what_survivors_have_met(launch: Launch, case: str) -> None:
    assert leave(launch, case) == DEATHS[case]


#: What each seat says at the end of a case that nobody leaves: one launch for all of them.
LIVES: dict[str, dict[int, str]] = {
    "beside_starts": dict.fromkeys(range(4), "4.0"),
    "many_messages": dict.fromkeys(range(4), "[2, 2, 2]"),
    "kept_quiet": dict.fromkeys(range(4), "(4, True)"),
    "first_call_of_a_child": dict.fromkeys(range(4), "(4, 2)"),
    "plain_side": dict.fromkeys(range(4), "4"),
    "ways": {0: "told 20 of 20", 1: "4", 2: "4", 3: "4"},
}


@pytest.mark.timeout(300)
def test_what_all_have_met_where_nobody_dies(launch: Launch) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch(
        [*command, sys.executable, str(PROGRAM.with_name("leave.py")), *LIVES], timeout_s=200
    )
    for case, expected in LIVES.items():
        said = re.findall(rf"^{case}, seat (\d): (.*)$", done.stdout, re.MULTILINE)
        assert {int(seat): words for seat, words in said} == expected, done.stdout


@pytest.mark.parametrize("case", ["an_error", "an_error_of_one"])
def test_an_error_of_one_rank_ends_all_with_its_words(launch: Launch, case: str) -> None:
    said = leave(launch, case)
    assert said.pop(1) == "RuntimeError no more coffee"
    lost = "PeerLost attempts: rank 1 lost (RuntimeError('no more coffee')); see what it met"
    assert said == dict.fromkeys((0, 2, 3), lost)


def test_an_error_that_cannot_be_written_is_named() -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise self

    assert words_of(Mute()) == "Mute"
    assert words_of(ValueError("more")) == "ValueError('more')"


def test_who_gives_up_and_dies_is_replaced(launch: Launch) -> None:
    said = leave(launch, "an_error_untold", "-n 4 --spares 1")
    assert said == dict.fromkeys(range(4), "(4, 2)")


def test_who_leaves_alone_is_told_by_the_next_loop(launch: Launch) -> None:
    said = leave(launch, "a_break_alone")
    assert said.pop(0).startswith("Revoked attempts: an attempt has failed and was left")
    assert said == dict.fromkeys((1, 3), str([0b1010, 1]))


def test_who_leaves_alone_is_told_by_any_call(launch: Launch) -> None:
    assert leave(launch, "a_break_and_a_call") == {0: "5", 1: "0", 2: "5", 3: "5"}


def test_who_leaves_a_failed_attempt_cannot_end_well(launch: Launch) -> None:
    said = leave(launch, "a_break_at_the_end")
    assert said.pop(0).startswith("Revoked close: an attempt has failed and was left")
    assert said == dict.fromkeys((1, 3), str((0b1010, 3)))


def test_a_limit_and_too_few_members_end_it_on_all(launch: Launch) -> None:
    for words in leave(launch, "a_limit").values():
        assert words.startswith("PeerLost allreduce: rank 1 lost"), words
        assert words.endswith("limit=2 attempts have failed: allow more"), words
    said = leave(launch, "a_limit_of_caught_errors")
    assert len(said) == 4, said
    for words in said.values():
        assert words.startswith("Revoked attempts: the last one failed by what its body"), words
        assert words.endswith("limit=2: allow more"), words
    for words in leave(launch, "too_few").values():
        assert "2 are left" in words, words
        assert "min_ranks=3" in words, words


def test_wrong_use_is_refused_on_all(launch: Launch) -> None:
    for words in leave(launch, "nested").values():
        assert "attempts: an attempt inside of another one" in words, words
    said = leave(launch, "unfinished")
    assert said.pop(0).startswith("UsageError attempts: a request is unfinished")
    for words in said.values():
        assert words.startswith("PeerLost attempts: rank 0 lost (UsageError"), words


def test_who_comes_late_counts_as_the_others_do(launch: Launch) -> None:
    said = leave(launch, "a_late_start")
    assert said == {0: said[0], 3: said[0].replace("allreduce", "attempts")}
    assert said[0] == "[(3, 2, (2,)), ('allreduce', (1,))]"


def test_what_waits_for_several_requests_is_repeated(launch: Launch) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "3", "--"]
    done = launch([*command, sys.executable, str(PROGRAM.with_name("messages.py"))])
    said = sorted(re.findall(r"^seat (.*)$", done.stdout, re.MULTILINE))
    assert said == [f"{seat}: [2, 2, 2, 2]" for seat in range(3)], done.stdout
    assert done.returncode == 0


def test_calls_inside_of_an_attempt_take_as_long(launch: Launch) -> None:
    program = str(ROOT / "docs" / "limits" / "attempts.py")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "2", "--", program]
    done = launch([*command, "8", "65536"])
    ratios = re.findall(r"(\d+) B: ([\d.]+) times", done.stdout)
    assert [size for size, _ in ratios] == ["8", "65536"], done.stdout
    assert all(float(ratio) < 1.5 for _, ratio in ratios), "docs say as long to 3 %"


@pytest.mark.parametrize(("ranks", "says"), [
    ("-n 1 --spares 1", "1 ranks that work, and one dies, the first does not"),
    ("-n 2", "2 ranks that work, and one dies, two are left"),
])  # fmt: skip
def test_the_bench_needs_somebody_to_lose(launch: Launch, ranks: str, says: str) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", *ranks.split(), "--"]
    done = launch([*command, "closeranks", "bench", "faults"])
    assert done.returncode == 2, done.stdout
    assert len(re.findall("closeranks: error: ", done.stdout)) == 1
    assert says in done.stdout


def test_spares_take_seats_before_new_processes(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "3"]
    command += ["--spares", "1", "--", "closeranks", "bench", "faults", "--recruits", "1"]
    done = launch([*command, "--json", str(path)])
    rows = json.loads(path.read_text())
    assert [row["mode"] for row in rows] == ["replace", "spawn"], done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(("spares", "expected"), [
    (0, [("kill", "shrink", 4, 0), ("stop", "shrink", 3, 0)]),
    (2, [("kill", "replace", 4, 0), ("stop", "replace", 4, 0)]),
])  # fmt: skip
def test_the_bench_measures_every_loss(
    launch: Launch, tmp_path: Path, spares: int, expected: list[tuple[str, str, int, int]]
) -> None:
    path = tmp_path / "faults.json"
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4"]
    command += ["--spares", str(spares), "--"]
    done = launch([*command, "closeranks", "bench", "faults", "--json", str(path)])
    assert "buffers, int64, sum" in done.stdout
    rows = json.loads(path.read_text())
    found = [(row["kind"], row["mode"], row["ranks"], row["wrong"]) for row in rows]
    assert found == expected, done.stdout
    for row in rows:
        parts = [
            row[f"{part}_ms"] or 0 for part in ("detected", "revoked", "agreed", "shrunk", "redone")
        ]
        assert 0 < max(parts) <= row["total_ms"] < 5000
