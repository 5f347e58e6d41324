"""From what the user writes to what a rank executes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.launch import program


def test_scripts_run_with_this_python(tmp_path: Path) -> None:
    script = tmp_path / "prog.py"
    script.write_text("")
    assert program.resolve([str(script), "-v"]) == [sys.executable, str(script), "-v"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["closeranks", "bench"], [sys.executable, "-m", "closeranks", "bench"]),
        (
            [f"{Path(sys.executable).parent}/closeranks", "bench"],
            [sys.executable, "-m", "closeranks", "bench"],
        ),
        (["python", "-c", "1"], [sys.executable, "-c", "1"]),
        (["sh", "-c", "exit 3"], ["sh", "-c", "exit 3"]),
    ],
)
def test_names_become_words(words: list[str], expected: list[str]) -> None:
    assert program.resolve(words) == expected


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "no program given"),
        (["gone.py"], "no file gone.py"),
        (["no-such-thing"], "on the PATH"),
        (["./no-such-thing"], "no program ./no-such-thing to read here"),
        (["/"], "/ is a folder"),
    ],
)
def test_what_cannot_run_is_refused(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        program.resolve(words)


def test_a_file_that_may_not_be_executed_says_so(tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="job may not be executed; allow it by chmod"):
        program.resolve([str(script)])


def test_the_programs_own_python_is_asked_for_its_library() -> None:
    assert program.python_of([sys.executable, "x.py"]) == sys.executable
    assert program.python_of(["sh"]) == sys.executable
