"""Ranks die or fail while all open a communicator: it is opened on none, and nobody waits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch
from tests.faults.cells import SEED

PROGRAM = Path(__file__).parent / "opening.py"
SAID = re.compile(r"^rank (\d): (\w+)(.*)$", re.MULTILINE)
RANKS = 4
#: In the order in which `init` comes to them.
WINDOWS = [
    "collectives.init:_guard",
    "collectives.init:age_s",
    "collectives.init:_staffed",
    "collectives.init:_shared_tuning",
    "comms.discover:assemble",
    "collectives.init:fitting",
    "comms.measure:settle",
    "comms.measure:_Meeting",
    "collectives.init:_abilities",
    "collectives.init:World",
    "collectives.world:share",
    "collectives.init:calibrate",
]
TAKEN = WINDOWS if SEED == "all" else WINDOWS[int(SEED) % 3 :: 3]


@pytest.fixture(autouse=True)
def _needs_open_mpi(mpi_library: str) -> None:
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")


def open_with(launch: Launch, *words: str, spares: int = 0) -> tuple[int, dict[int, str]]:
    """Run the program; gives its exit status, and what each rank said."""
    start = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(RANKS)]
    done = launch([*start, "--spares", str(spares), "--", sys.executable, str(PROGRAM), *words])
    said = {int(rank): kind + rest for rank, kind, rest in SAID.findall(done.stdout)}
    assert said, done.stdout
    return done.returncode, said


@pytest.mark.parametrize("at", TAKEN)
@pytest.mark.parametrize("spares", [0, 1])
def test_who_is_left_names_the_dead(launch: Launch, at: str, spares: int) -> None:
    status, said = open_with(launch, "dies", at, spares=spares)
    members = {rank: words for rank, words in said.items() if rank < RANKS}
    assert set(members) == {0, 2, 3}
    for words in members.values():  # others may be gone by then: they have left, too
        assert re.match(r"PeerLost init: ranks? (0, )?1(, [234])* lost; start the job again", words)
    assert status == 1


@pytest.mark.parametrize("at", ["collectives.init:_shared_tuning", "collectives.world:share"])
def test_one_fails_alone_and_all_leave(launch: Launch, at: str) -> None:
    status, said = open_with(launch, "fails", at)
    assert said.pop(1) == "MemoryError of rank 1 alone"
    expected = "Revoked init: another rank could not open the communicator; see what it has met"
    assert said == dict.fromkeys((0, 2, 3), expected)
    assert status == 1


def test_spares_go_home_where_nothing_is_opened(launch: Launch) -> None:
    status, said = open_with(launch, "all fail", spares=2)
    assert set(said) == set(range(RANKS))
    assert all(words.startswith("UsageError tuning: cannot read") for words in said.values())
    assert status == 1
