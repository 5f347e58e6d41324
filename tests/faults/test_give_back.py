"""Arrays of `comm.empty` whose ranks have died: the memory of all is given back."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

PROGRAM = Path(__file__).parent / "give_back.py"
SAID = re.compile(
    r"survivor (\d+): epoch (\d+), files (\d+) (\d+), KiB (\d+) (\d+), rows (\d+), promised (\d+)"
)
RANKS = 5
#: What one rank's array takes; the rest are pages that nobody has touched before.
ARRAY_KIB = 1024


@pytest.mark.parametrize(
    "kills",
    ["4@2:holding", "4@2:holding,0@4:holding,2@6:holding", "4@1:promised,0@3:promised",
         "4@1:sharing,0@3:sharing", "4@1:mapped,0@3:mapped",
         "1@2:mapped,4@2:holding,0@5:sharing"],
)  # fmt: skip
def test_survivors_keep_nothing_of_the_dead(launch: Launch, mpi_library: str, kills: str) -> None:
    give_back(launch, mpi_library, kills)


@pytest.mark.parametrize(("spares", "words"), [("2", ()), ("0", ("recruits",))])
def test_with_others_in_their_seats_neither(
    launch: Launch, mpi_library: str, spares: str, words: tuple[str, ...]
) -> None:
    give_back(
        launch, mpi_library, "4@2:holding,0@4:mapped", *words, spares=spares, others=len(words)
    )


def give_back(
    launch: Launch, mpi_library: str, kills: str, *words: str, spares: str = "0", others: int = 0
) -> None:
    """Run the program and compare what survivors have in the end with what they had.

    ``others`` files without arrays may have come: after new processes there is one,
    of a page, however often they come.
    """
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(RANKS)]
    command += ["--spares", spares] if spares != "0" else []
    done = launch([*command, "--", sys.executable, str(PROGRAM), kills, *words])
    said = [tuple(map(int, words)) for words in SAID.findall(done.stdout)]
    assert len(said) == RANKS - len(kills.split(",")), done.stdout
    for _, epoch, files, files_left, kib, kib_left, rows, promised in said:
        assert epoch >= 1
        assert files_left <= files + others, said
        assert kib_left < kib + ARRAY_KIB, said
        assert (rows, promised) == (1, 0), said
