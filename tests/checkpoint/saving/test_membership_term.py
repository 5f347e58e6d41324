"""Which run goes on, and from which number: decided from saves alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from closeranks.checkpoint.saving.membership_term import RunChoice, choose_run

#: Runs of two jobs.
OURS, THEIRS = "0123456789abcdef", "fedcba9876543210"


def _save(run: str, term: int, generation: int) -> Any:
    """Make a save in memory, as far as the choice looks at it."""
    return SimpleNamespace(header=SimpleNamespace(run=run), age=(term << 32 | 77, generation))


def _file(run: str | None, term: int, generation: int) -> Any:
    """Make a save on disk, as far as the choice looks at it."""
    return SimpleNamespace(run=run, age=(term << 32 | 78, generation))


@pytest.mark.parametrize(
    ("saved", "files", "seen", "chosen"),
    [
        ([], [], [], RunChoice(None, 0, 0)),
        ([(OURS, 1, 4), (OURS, 1, 3)], [], [], RunChoice(OURS, 1, 4)),
        ([], [(OURS, 2, 9)], [], RunChoice(OURS, 2, 9)),
        # Memory comes first, though the file is newer; numbers count from the largest.
        ([(OURS, 1, 4)], [(THEIRS, 3, 9)], [], RunChoice(OURS, 3, 9)),
        # A file without a run says nothing of it.
        ([], [(None, 4, 2), (THEIRS, 1, 1)], [], RunChoice(THEIRS, 4, 2)),
        # A slot that holds no save has taken the number of its term all the same.
        ([(OURS, 1, 4)], [], [6 << 32 | 5], RunChoice(OURS, 6, 4)),
    ],
)
def test_the_newest_run_goes_on(
    saved: list[Any], files: list[Any], seen: list[int], chosen: RunChoice
) -> None:
    found = choose_run([_save(*one) for one in saved], [_file(*one) for one in files], seen)
    assert found == chosen


def test_a_term_has_the_next_number_and_what_was_drawn_for_it() -> None:
    assert RunChoice(OURS, 6, 4).epoch(0xABCD) == 7 << 32 | 0xABCD
