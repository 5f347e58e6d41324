"""Ranks die, the others go on, and every sum is that of who agreed on it."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from closeranks.collectives.faults.attempts import words_of
from tests.conftest import ROOT, Launch
from tests.faults.questions import Answer, Question, asks

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

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


def repeat(*words: str, dies: int, **variables: str) -> Question:
    """Ask for sums of a size, by an algorithm, in a form, while these ranks die."""
    return Question("repeat.py", words, dies=dies, variables=tuple(variables.items()))


def survivors(answer: Answer) -> list[tuple[int, ...]]:
    """Give what each survivor said, by seat."""
    said = sorted(tuple(map(int, found)) for found in SAID.findall(answer.text))
    assert said, answer.whole
    return said


@pytest.mark.share(25)
@pytest.mark.parametrize(("form", "size"), list(product(FORMS, SIZES)))
@asks(lambda form, size: repeat(*size, form, "2@20,1@40:after", dies=2))
def test_those_who_are_left_go_on(answer: Answer, form: str, size: tuple[str, str]) -> None:
    assert survivors(answer) == [(0, 0, 2, 2), (3, 1, 2, 2)]


@pytest.mark.parametrize("form", ["request", "persistent"])
@pytest.mark.parametrize("size", [("8", "shared"), ("65536", "ring"), ("4096", "native")])
@asks(
    lambda form, size: repeat(
        *size, form, "", dies=1, CLOSERANKS_FAULTS="kill seat=2 step=20 at=allreduce"
    )
)
def test_a_fault_on_purpose_meets_what_is_started(
    answer: Answer, form: str, size: tuple[str, str]
) -> None:
    assert survivors(answer) == [(0, 0, 3, 1), (1, 1, 3, 1), (3, 2, 3, 1)]


@asks(repeat("8", "auto", "object", "2@20,1@40:after", dies=2))
def test_calls_with_objects_end_too(answer: Answer) -> None:
    assert survivors(answer) == [(0, 0, 2, 2), (3, 1, 2, 2)]


@asks(Question("unheard.py", dies=1))
def test_who_waits_for_what_was_lost_is_roused(answer: Answer) -> None:
    assert sorted(set(re.findall(r"seat \d of .*", answer.text))) == [
        f"seat {seat} of 3, attempt 2" for seat in (0, 1, 3)
    ], answer.whole
    assert answer.status == 0, answer.whole


@asks(Question("unasked.py", ranks=2, dies=1))
def test_who_dies_with_a_long_message_under_way_keeps_nobody(answer: Answer) -> None:
    assert "seat 0 of 1, attempt 2" in answer.text, answer.whole
    assert answer.status == 0, answer.whole


@asks(repeat("4096", "shared", "blocking", "0@20,3@20", dies=2))
def test_two_at_once_are_one_recovery_or_two(answer: Answer) -> None:
    said = survivors(answer)
    assert [words[:3] for words in said] == [(1, 0, 2), (2, 1, 2)]
    assert {words[3] for words in said} <= {1, 2}


@asks(repeat("8", "auto", "blocking", "0@10,1@20,2@30", dies=3))
def test_the_last_one_goes_on_alone(answer: Answer) -> None:
    assert survivors(answer) == [(3, 0, 1, 3)]


def leave(case: str, dies: int = 0, *, stays: bool = False, spares: int = 0) -> Question:
    """Ask what comes of a case of the other program."""
    return Question("leave.py", (case,), ranks=4 + spares, dies=dies, stays=stays, spares=spares)


def met(answer: Answer) -> dict[int, str]:
    """Give what each seat met in it."""
    said = dict(re.findall(r"^seat (\d): (.*)$", answer.text, re.MULTILINE))
    assert said, answer.whole
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


@pytest.mark.share(9)
@pytest.mark.parametrize("case", DEATHS)
@asks(lambda case: leave(case, 2 if case == "no_use" else 1, stays=case == "fruitless"))
def test_what_survivors_have_met(answer: Answer, case: str) -> None:
    assert met(answer) == DEATHS[case], answer.whole


#: What each seat says at the end of a case that nobody leaves: one launch for all of them.
LIVES: dict[str, dict[int, str]] = {
    "beside_starts": dict.fromkeys(range(4), "4.0"),
    "many_messages": dict.fromkeys(range(4), "[2, 2, 2]"),
    "kept_quiet": dict.fromkeys(range(4), "(4, True)"),
    "first_call_of_a_child": dict.fromkeys(range(4), "(4, 2)"),
    "plain_side": dict.fromkeys(range(4), "4"),
    "ways": {0: "told 20 of 20", 1: "4", 2: "4", 3: "4"},
}


@asks(Question("leave.py", tuple(LIVES)))
def test_what_all_have_met_where_nobody_dies(answer: Answer) -> None:
    for case, expected in LIVES.items():
        said = re.findall(rf"^{case}, seat (\d): (.*)$", answer.text, re.MULTILINE)
        assert {int(seat): words for seat, words in said} == expected, answer.whole


@pytest.mark.parametrize("case", ["an_error", "an_error_of_one"])
@asks(partial(leave, stays=True))
def test_an_error_of_one_rank_ends_all_with_its_words(answer: Answer, case: str) -> None:
    said = met(answer)
    assert said.pop(1) == "RuntimeError no more coffee"
    lost = "PeerLost attempts: rank 1 lost (RuntimeError('no more coffee')); see what it met"
    assert said == dict.fromkeys((0, 2, 3), lost)


def test_an_error_that_cannot_be_written_is_named() -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise self

    assert words_of(Mute()) == "Mute"
    assert words_of(ValueError("more")) == "ValueError('more')"


@asks(leave("an_error_untold", 1, spares=1))
def test_who_gives_up_and_dies_is_replaced(answer: Answer) -> None:
    assert met(answer) == dict.fromkeys(range(4), "(4, 2)")


@asks(leave("a_break_alone", 2))
def test_who_leaves_alone_is_told_by_the_next_loop(answer: Answer) -> None:
    said = met(answer)
    assert said.pop(0).startswith("Revoked attempts: an attempt has failed and was left")
    assert said == dict.fromkeys((1, 3), str([0b1010, 1]))


@asks(leave("a_break_and_a_call"))
def test_who_leaves_alone_is_told_by_any_call(answer: Answer) -> None:
    assert met(answer) == {0: "5", 1: "0", 2: "5", 3: "5"}


@asks(leave("a_break_at_the_end", 2))
def test_who_leaves_a_failed_attempt_cannot_end_well(answer: Answer) -> None:
    said = met(answer)
    assert said.pop(0).startswith("Revoked close: an attempt has failed and was left")
    assert said == dict.fromkeys((1, 3), str((0b1010, 3)))


@asks(
    leave("a_limit", 2, stays=True),
    leave("a_limit_of_caught_errors", stays=True),
    leave("too_few", 2, stays=True),
)
def test_a_limit_and_too_few_members_end_it_on_all(answers: list[Answer]) -> None:
    limit, caught, few = map(met, answers)
    for words in limit.values():
        assert words.startswith("PeerLost allreduce: rank 1 lost"), words
        assert words.endswith("limit=2 attempts have failed: allow more"), words
    assert len(caught) == 4, caught
    for words in caught.values():
        assert words.startswith("Revoked attempts: the last one failed by what its body"), words
        assert words.endswith("limit=2: allow more"), words
    for words in few.values():
        assert "2 are left" in words, words
        assert "min_ranks=3" in words, words


@asks(leave("nested", stays=True), leave("unfinished", stays=True))
def test_wrong_use_is_refused_on_all(answers: list[Answer]) -> None:
    nested, said = map(met, answers)
    for words in nested.values():
        assert "attempts: an attempt inside of another one" in words, words
    assert said.pop(0).startswith("UsageError attempts: a request is unfinished")
    for words in said.values():
        assert words.startswith("PeerLost attempts: rank 0 lost (UsageError"), words


@asks(leave("a_late_start", 2))
def test_who_comes_late_counts_as_the_others_do(answer: Answer) -> None:
    said = met(answer)
    assert said == {0: said[0], 3: said[0].replace("allreduce", "attempts")}
    assert said[0] == "[(3, 2, (2,)), ('allreduce', (1,))]"


@asks(Question("messages.py", ranks=3))
def test_what_waits_for_several_requests_is_repeated(answer: Answer) -> None:
    said = sorted(re.findall(r"^seat (.*)$", answer.text, re.MULTILINE))
    assert said == [f"{seat}: [2, 2, 2, 2]" for seat in range(3)], answer.whole
    assert answer.status == 0, answer.whole


@pytest.mark.serial
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
