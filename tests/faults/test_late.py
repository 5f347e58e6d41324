"""Late ranks: every survivor names them, silent or not, with either library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch, Run

PROGRAM = Path(__file__).parent / "late.py"


def said_by(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str, str, str]]:
    """Give rank, late ranks, seconds and words of each rank."""
    return re.findall(r"^rank (\d): (\(.*\)) after ([\d.]+) s: (.*)$", done.stdout, re.MULTILINE)


def survives(launch: Launch, library: str, when: str) -> subprocess.CompletedProcess[str]:
    """Launch four ranks, of which some may die."""
    if library != "Open MPI":
        pytest.skip("MPICH's jobs are not repaired")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    return launch([*command, sys.executable, str(PROGRAM), when])


@pytest.mark.parametrize("when", ["before", "inside"])
def test_all_name_the_rank_that_is_stopped(mpirun: Run, when: str) -> None:
    done = mpirun(4, str(PROGRAM), when)
    said = said_by(done)
    assert sorted(rank for rank, *_ in said) == ["0", "1", "2", "3"], done.stdout
    for rank, ranks, took_s, words in said:
        assert ranks == "(2,)", words
        assert "rank 2 not arrived" in words
        assert rank == "2" or float(took_s) < 1 + 1 + 0.5, words  # half a second of calls before
    assert done.returncode == 0


@pytest.mark.parametrize("algorithm", ["native", "ring", "shared"])
def test_no_call_is_served_after_that_and_the_end_is_quick(mpirun: Run, algorithm: str) -> None:
    """A call of the library would meet the one before it, which some ranks never made."""
    done = mpirun(4, str(PROGRAM), "after", algorithm)
    assert [ranks for _, ranks, *_ in said_by(done)] == ["(2,)"] * 4, done.stdout
    assert all(words.startswith("allreduce: rank 2") for *_, words in said_by(done))
    assert "went on" not in done.stdout
    quick = re.findall(r"^closed after [0-4] s$", done.stdout, re.MULTILINE)
    assert len(quick) == 4, done.stdout
    assert done.returncode == 0


def test_who_was_late_before_is_not_named_again(
    mpirun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPI4PY_RC_THREAD_LEVEL", "serialized")  # nobody answers while one sleeps
    done = mpirun(3, str(PROGRAM), "again")
    assert [ranks for _, ranks, *_ in said_by(done)] == ["(1,)"] * 3, done.stdout
    assert done.returncode == 0


def test_who_waits_for_the_late_one_in_an_earlier_call_is_not_named(mpirun: Run) -> None:
    done = mpirun(4, str(PROGRAM), "ahead")
    assert [ranks for _, ranks, *_ in said_by(done)] == ["(2,)"] * 4, done.stdout
    assert done.returncode == 0


def test_who_computes_after_that_call_and_cannot_answer_is_not_named(
    mpirun: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPI4PY_RC_THREAD_LEVEL", "serialized")  # nobody answers while one sleeps
    done = mpirun(4, str(PROGRAM), "mute")
    assert [ranks for _, ranks, *_ in said_by(done)] == ["(2,)"] * 4, done.stdout
    assert done.returncode == 0


def test_a_rank_that_compiles_is_not_late(
    mpirun: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nobody has
    done = mpirun(4, str(PROGRAM), "before")
    assert [ranks for _, ranks, *_ in said_by(done)] == ["(2,)"] * 4, done.stdout
    assert done.returncode == 0


def test_a_late_rank_is_named_by_all_and_the_attempt_repeated(
    launch: Launch, mpi_library: str
) -> None:
    done = survives(launch, mpi_library, "attempt")
    said = said_by(done)
    assert sorted(rank for rank, *_ in said) == ["0", "1", "2", "3"], done.stdout
    assert {ranks for _, ranks, *_ in said} == {"(2,)"}
    assert done.stdout.count("attempt 2: 4 ranks, 4") == 4, done.stdout


def test_an_attempt_is_repeated_where_the_library_waits_for_our_requests(
    launch: Launch, mpi_library: str
) -> None:
    done = survives(launch, mpi_library, "waitall")
    assert done.stdout.count("attempt 2: 4 ranks, 4") == 4, done.stdout


def test_deadlines_of_a_block_hold_in_the_next_world_too(launch: Launch, mpi_library: str) -> None:
    """Who has arrived and gone answers there, and who is late hears of it."""
    done = survives(launch, mpi_library, "moved")
    assert [ranks for _, ranks, *_ in said_by(done)] == ["(1,)"] * 3, done.stdout
    assert done.stdout.count("attempt 2: 3 ranks") == 3, done.stdout
