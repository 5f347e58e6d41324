"""Late ranks: every survivor names them, silent or not, with either library."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.faults.questions import Answer, Question, asks

PROGRAM = Path(__file__).parent / "late.py"


def said_in(text: str) -> list[tuple[str, str, str, str]]:
    """Give rank, late ranks, seconds and words of each rank."""
    return re.findall(r"^rank (\d): (\(.*\)) after ([\d.]+) s: (.*)$", text, re.MULTILINE)


def late(*words: str, ranks: int = 4, job: str = "mpirun") -> Question:
    """Ask what is said of a late rank, in a job that loses none."""
    return Question("late.py", words, ranks=ranks, job=job)


@pytest.mark.parametrize("when", ["before", "inside"])
@asks(lambda when: late(when))
def test_all_name_the_rank_that_is_stopped(answer: Answer, when: str) -> None:
    said = said_in(answer.text)
    assert sorted(rank for rank, *_ in said) == ["0", "1", "2", "3"], answer.whole
    for rank, ranks, took_s, words in said:
        assert ranks == "(2,)", words
        assert "rank 2 not arrived" in words
        assert rank == "2" or float(took_s) < 1 + 1 + 0.5, words  # half a second of calls before
    assert answer.status == 0


@pytest.mark.parametrize("algorithm", ["native", "ring", "shared"])
@asks(lambda algorithm: late("after", algorithm))
def test_no_call_is_served_after_that_and_the_end_is_quick(answer: Answer, algorithm: str) -> None:
    """A call of the library would meet the one before it, which some ranks never made."""
    said = said_in(answer.text)
    assert [ranks for _, ranks, *_ in said] == ["(2,)"] * 4, answer.whole
    assert all(words.startswith("allreduce: rank 2") for *_, words in said)
    assert "went on" not in answer.text
    quick = re.findall(r"^closed after [0-4] s$", answer.text, re.MULTILINE)
    assert len(quick) == 4, answer.whole
    assert answer.status == 0


@asks(late("again", ranks=3, job="serialized"))
def test_who_was_late_before_is_not_named_again(answer: Answer) -> None:
    assert [ranks for _, ranks, *_ in said_in(answer.text)] == ["(1,)"] * 3, answer.whole
    assert answer.status == 0


@asks(late("ahead"))
def test_who_waits_for_the_late_one_in_an_earlier_call_is_not_named(answer: Answer) -> None:
    assert [ranks for _, ranks, *_ in said_in(answer.text)] == ["(2,)"] * 4, answer.whole
    assert answer.status == 0


@asks(late("mute", job="serialized"))
def test_who_computes_after_that_call_and_cannot_answer_is_not_named(answer: Answer) -> None:
    assert [ranks for _, ranks, *_ in said_in(answer.text)] == ["(2,)"] * 4, answer.whole
    assert answer.status == 0


def test_a_rank_that_compiles_is_not_late(
    mpirun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nobody has
    done = mpirun(4, str(PROGRAM), "before")
    assert [ranks for _, ranks, *_ in said_in(done.stdout)] == ["(2,)"] * 4, done.stdout
    assert done.returncode == 0


@pytest.mark.usefixtures("needs_open_mpi")
@asks(late("attempt", job="faults"))
def test_a_late_rank_is_named_by_all_and_the_attempt_repeated(answer: Answer) -> None:
    said = said_in(answer.text)
    assert sorted(rank for rank, *_ in said) == ["0", "1", "2", "3"], answer.whole
    assert {ranks for _, ranks, *_ in said} == {"(2,)"}
    assert answer.text.count("attempt 2: 4 ranks, 4") == 4, answer.whole


@pytest.mark.usefixtures("needs_open_mpi")
@asks(late("waitall", job="faults"))
def test_an_attempt_is_repeated_where_the_library_waits_for_our_requests(answer: Answer) -> None:
    assert answer.text.count("attempt 2: 4 ranks, 4") == 4, answer.whole


@pytest.mark.usefixtures("needs_open_mpi")
@asks(late("moved", job="faults")._replace(dies=1))
def test_deadlines_of_a_block_hold_in_the_next_world_too(answer: Answer) -> None:
    """Who has arrived and gone answers there, and who is late hears of it."""
    assert [ranks for _, ranks, *_ in said_in(answer.text)] == ["(1,)"] * 3, answer.whole
    assert answer.text.count("attempt 2: 3 ranks") == 3, answer.whole
