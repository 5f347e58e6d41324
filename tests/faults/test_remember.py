"""Jobs killed at every point of a save or a restore come back from memory."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random

import psutil
import pytest

from closeranks.checkpoint.memory import slot_file
from closeranks.comms.wait import Deadline
from closeranks.errors import CheckpointError
from tests.checkpoint.mishaps import MISHAPS, hurt
from tests.shares import SEED

PROGRAM = str(Path(__file__).parent / "remember.py")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
RUN = "test"


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name of this test alone, whatever the command; nothing of it is left behind."""
    made = f"remember-{secrets.token_hex(6)}"
    monkeypatch.setenv("CLOSERANKS_RUN", RUN)
    yield made
    for path in kept(made):
        path.unlink()


def kept(name: str) -> list[Path]:
    """Give the slots of a name."""
    return sorted(path for path, _ in slot_file.found(f"{name}.{RUN}"))


#: Where a save is cut off, and the steps that may come back: what is copied everywhere counts.
CUTS = {
    "room": (2,), "before the copy": (2,), "in the copy": (2,), "copied": (2,),
    "written": (2, 3), "in the code": (2, 3), "encoded": (2, 3), "committed": (3,),
}  # fmt: skip


@pytest.mark.share(16)  # each takes two launches
@pytest.mark.parametrize(("point", "who"), list(product(CUTS, ("2", "0,1,2,3"))))
def test_a_save_is_cut_off(mpirun: Run, name: str, point: str, who: str) -> None:
    cut = mpirun(4, PROGRAM, name, "save", "3", point, who)
    assert cut.returncode != 0, cut.stdout
    assert "AttributeError" not in cut.stdout, "the point is called otherwise now"
    assert point == "committed" or "saved" not in cut.stdout
    done = mpirun(4, PROGRAM, name, "restore")
    assert done.returncode == 0, done.stdout
    assert any(f"restored {step}, " in done.stdout for step in CUTS[point]), done.stdout
    assert ", whole" in done.stdout


@pytest.mark.parametrize("point", ["verified", "rebuilding", "rebuilt"])
def test_a_restore_is_cut_off(mpirun: Run, name: str, point: str) -> None:
    saved = mpirun(4, PROGRAM, name, "save", "2")
    assert saved.returncode == 0, saved.stdout
    for path in kept(name):
        if "-3." in path.name:
            path.unlink()
    cut = mpirun(4, PROGRAM, name, "restore", point, "0,1,2,3")
    assert cut.returncode != 0, cut.stdout
    assert "AttributeError" not in cut.stdout, "the point is called otherwise now"
    assert "restored" not in cut.stdout
    done = mpirun(4, PROGRAM, name, "restore")
    assert done.returncode == 0, done.stdout
    assert "restored 2, skipped 0, whole" in done.stdout


def kill(folder: Path, ranks: int, rng: Random) -> None:
    """Kill ranks at some moment of a save, or between two."""
    after, share = rng.randrange(2, 6), rng.random()
    dying = range(ranks) if rng.random() < 0.5 else [rng.randrange(ranks)]
    seen: list[float] = []
    deadline = Deadline(40)
    while len(seen) < after and not deadline.expired:
        done = committed(folder)
        seen += [time.monotonic()] * (len(done) - len(seen))
        time.sleep(0.0005)
    time.sleep(share * (seen[-1] - seen[-2]) if len(seen) > 1 else 0)
    for rank in dying:
        with suppress(ProcessLookupError, FileNotFoundError):  # it is gone, or never came
            os.kill(int((folder / f"rank-{rank}").read_text()), signal.SIGKILL)


def committed(folder: Path) -> list[int]:
    """Give the steps that the first rank knows to be kept."""
    path = folder / "committed"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.share(50)  # each takes two launches
@pytest.mark.parametrize("seed", range(50))
def test_killed_from_outside_at_any_moment(
    mpirun: Run, name: str, tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    ranks = rng.choice((2, 3, 4))
    killer = threading.Thread(target=kill, args=(tmp_path, ranks, rng))
    killer.start()
    cut = mpirun(ranks, PROGRAM, name, "steady", str(tmp_path), "100000")
    killer.join()
    assert cut.returncode != 0, cut.stdout
    steps = committed(tmp_path)
    assert steps, cut.stdout
    member, how = rng.randrange(ranks), rng.choice((*MISHAPS, "nothing"))
    for path in kept(name):
        if how != "nothing" and f"-{member}." in path.name:
            with suppress(CheckpointError):  # who was killed when it was made has left no header
                hurt(path, how, rng)
    again = rng.choice((ranks, ranks, 2, 3, 4))
    done = mpirun(again, PROGRAM, name, "steady", str(tmp_path), "2")
    told = f"{ranks} ranks, then {again}, {how} of member {member}\n{done.stdout}"
    assert done.returncode == 0, told
    found = [int(step) for step in re.findall(r"restored (\d+), ", done.stdout)]
    assert len(found) == again, told
    assert len(set(found)) == 1, told
    assert found[0] >= steps[-1], told


@pytest.mark.skipif(SEED != "all", reason="2.2 GiB take half a minute: make test-all")
@pytest.mark.timeout(300)
def test_more_than_two_gibibytes(mpirun: Run, name: str) -> None:
    room = os.statvfs("/dev/shm")
    if min(room.f_bavail * room.f_frsize, psutil.virtual_memory().available) < 9 << 30:
        pytest.skip("9 GiB of memory are not free")
    done = mpirun(3, PROGRAM, name, "large", timeout_s=240)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("bytes are back") == 3, done.stdout
    assert f"{283 << 23} bytes are back" in done.stdout


@pytest.mark.parametrize("ranks", [3, 6])
def test_another_number_of_ranks(mpirun: Run, name: str, ranks: int) -> None:
    saved = mpirun(4, PROGRAM, name, "save", "2")
    assert saved.returncode == 0, saved.stdout
    done = mpirun(ranks, PROGRAM, name, "reshape")
    assert done.returncode == 0, done.stdout
    assert f"reshaped 2 to {ranks}" in done.stdout


@pytest.mark.usefixtures("needs_open_mpi")
def test_a_rank_is_lost_and_the_others_go_on(launch: Run, name: str) -> None:
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch([*command, PROGRAM, name, "attempts", "shrink", "1"])
    assert done.stdout.count("done 6 with 3 of epoch 1") == 3, done.stdout
    assert not kept(name)


@pytest.mark.cluster
@pytest.mark.timeout(150)
@pytest.mark.usefixtures("needs_open_mpi")
def test_a_node_is_lost_with_its_memory_and_spares_get_its_state(launch: Run, name: str) -> None:
    lab = ["lab", "--nodes", "4", "--per-node", "2", "--spares", "2", "--faults", "--"]
    command = [sys.executable, "-m", "closeranks", *lab, PROGRAM, name]
    done = launch([*command, "attempts", "replace", "2,3"], timeout_s=120)
    if done.returncode == 1 and "not available" in done.stdout:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.stdout.count("done 6 with 8 of epoch 1") == 8, done.stdout
