"""Ranks die or fail while all open a communicator: it is opened on none, and nobody waits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

pytestmark = pytest.mark.usefixtures("needs_open_mpi")

PROGRAM = Path(__file__).parent / "opening.py"
SAID = re.compile(r"^rank (\d): (\w+)(.*)$", re.MULTILINE)
RANKS = 4
#: In the order in which `init` comes to them.
WINDOWS = [
    "collectives.communicator.initialization:_watch_node",
    "collectives.communicator.initialization:process_age_s",
    "collectives.communicator.initialization:_set_spares_apart",
    "collectives.communicator.initialization:agreed_tuning",
    "comms.discovery.discovery:assemble",
    "collectives.communicator.initialization:fitting",
    "comms.discovery.link_survey:settle",
    "comms.discovery.link_survey:_Meeting",
    "collectives.communicator.initialization:_abilities",
    "collectives.communicator.initialization:World",
    "collectives.engine.epoch_world:share",
    "collectives.communicator.initialization:calibrate",
]
#: Where who fails alone is missed when it has ended.
EARLY = WINDOWS[:3]


def open_with(launch: Launch, *words: str, spares: int = 0) -> tuple[int, dict[int, str]]:
    """Run the program; gives its exit status, and what each rank said."""
    start = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", str(RANKS)]
    done = launch([*start, "--spares", str(spares), "--", sys.executable, str(PROGRAM), *words])
    said = {int(rank): kind + rest for rank, kind, rest in SAID.findall(done.stdout)}
    assert said, done.stdout
    return done.returncode, said


def names_the_dead(said: dict[int, str], dead: int) -> bool:
    """Whether all members that are left name it; others may be gone by then: they leave, too."""
    found = {rank: words for rank, words in said.items() if rank < RANKS}
    told = re.compile(r"PeerLost init: ranks? ([\d, ]+) lost; start the job again")
    matches = {rank: told.fullmatch(words) for rank, words in found.items()}
    return set(found) == set(range(RANKS)) - {dead} and all(
        match is not None and str(dead) in match[1].split(", ") for match in matches.values()
    )


@pytest.mark.parametrize("at", WINDOWS)
@pytest.mark.parametrize("spares", [0, 1])
def test_who_is_left_names_the_dead(launch: Launch, at: str, spares: int) -> None:
    status, said = open_with(launch, "dies", at, spares=spares)
    assert names_the_dead(said, 1), said
    assert status == 1


@pytest.mark.parametrize(
    "at",
    [
        "collectives.communicator.initialization:process_age_s",
        "collectives.communicator.initialization:calibrate",
    ],
)
def test_what_goes_wrong_for_want_of_the_dead_is_their_death(launch: Launch, at: str) -> None:
    status, said = open_with(launch, "misleads", at)
    assert names_the_dead(said, 1), said
    assert status == 1


def test_spares_go_home_where_the_first_rank_dies(launch: Launch) -> None:
    status, said = open_with(
        launch, "dies", "collectives.communicator.initialization:World", "0", spares=1
    )
    assert names_the_dead(said, 0), said
    assert status == 1


@pytest.mark.parametrize("at", WINDOWS[1:])
def test_one_fails_alone_and_all_leave(launch: Launch, at: str) -> None:
    """In a part that all make together, before one or after it."""
    status, said = open_with(launch, "fails", at)
    assert said.pop(1) == "MemoryError of one rank alone"
    assert set(said) == {0, 2, 3}
    if at not in EARLY:
        expected = "Revoked init: another rank could not open the communicator; see what it has met"
        assert set(said.values()) == {expected}
    assert status == 1


def test_spares_go_home_where_nothing_is_opened(launch: Launch) -> None:
    status, said = open_with(launch, "all fail", spares=2)
    assert set(said) == set(range(RANKS))
    assert all(words.startswith("UsageError tuning: cannot read") for words in said.values())
    assert status == 1


#: A node whose memory has our folder already, from another user.
WINDOWS_FOLDER = (
    "mount -t tmpfs -o mode=1777 tmpfs /dev/shm && mkdir -m 777 /dev/shm/closeranks-0"
    ' && chown 65534 /dev/shm/closeranks-0 && "$@"; status=$?'
    '; [ -z "$(ls -A /dev/shm/closeranks-0)" ] && exit $status'
)


@pytest.mark.parametrize("faults", [[], ["--faults"]])
def test_all_ranks_name_the_owner_of_a_folder_that_is_not_ours(
    launch: Launch, faults: list[str]
) -> None:
    alone = ["unshare", "--mount", "sh", "-c", WINDOWS_FOLDER, "sh"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("only the superuser may mount")
    start = [sys.executable, "-m", "closeranks", "run", *faults, "-n", "3", "--", sys.executable]
    words = (  # the first one goes before the others have looked whether anybody has died
        "import closeranks as cr, os, sys\n"
        "from closeranks.collectives.engine import error_translation as failure\n"
        "failure.NEWS_S = 0 if os.environ['OMPI_COMM_WORLD_RANK'] == '0' else 2\n"
        "try: cr.init()\n"
        "except cr.Error as error: print(error, flush=True); sys.exit(1)"
    )
    done = launch([*alone, *start, "-c", words])
    assert done.returncode == 1, done.stdout
    said = "node memory /dev/shm/closeranks-0: a folder (mode 0777) of user nobody (65534), not"
    assert done.stdout.count(said) == 3, done.stdout


@pytest.mark.parametrize("faults", [[], ["--faults"]])
@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ("timeout_s=0 if rank == 1 else None", {0: "Revoked", 1: "UsageError", 2: "Revoked"}),
        ("recovery_timeout_s=20 + rank", dict.fromkeys(range(3), "Disagreement")),
    ],
)
def test_nobody_waits_for_one_that_asks_for_something_else(
    launch: Launch, faults: list[str], asks: str, expected: dict[int, str]
) -> None:
    words = (
        "import closeranks as cr, sys\n"
        "from mpi4py import MPI\n"
        "rank = MPI.COMM_WORLD.rank\n"
        f"try: cr.init({asks})\n"
        "except cr.Error as error: print(f'rank {rank}: {type(error).__name__} ', flush=True)\n"
        "sys.exit(3)"
    )
    start = [sys.executable, "-m", "closeranks", "run", *faults, "-n", "3", "--", sys.executable]
    done = launch([*start, "-c", words])
    assert {int(rank): kind for rank, kind, _ in SAID.findall(done.stdout)} == expected, done.stdout
    assert done.returncode == 3
