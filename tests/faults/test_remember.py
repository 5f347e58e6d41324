"""Jobs killed at every point of a save or a restore come back from memory."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from closeranks.checkpoint import slots
from tests.faults.cells import SEED

PROGRAM = str(Path(__file__).parent / "remember.py")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def name() -> Iterator[str]:
    """A name of this test alone; nothing of it is left behind."""
    made = f"remember-{secrets.token_hex(6)}"
    yield made
    for path, _ in slots.found(made):
        path.unlink()


#: Where a save is cut off, and the steps that may come back: what is copied everywhere counts.
CUTS = {
    "room": (2,), "before the copy": (2,), "in the copy": (2,), "copied": (2,),
    "written": (2, 3), "in the code": (2, 3), "encoded": (2, 3), "committed": (3,),
}  # fmt: skip


def due(cells: Iterable[Any]) -> list[Any]:
    """Give a third of the cells, another one every day, or all."""
    every = list(cells)
    return every if SEED == "all" else every[int(SEED) % 3 :: 3]


@pytest.mark.parametrize(("point", "who"), due(product(CUTS, ("2", "0,1,2,3"))))
def test_a_save_is_cut_off(mpirun: Run, name: str, point: str, who: str) -> None:
    cut = mpirun(4, PROGRAM, name, "save", "3", point, who)
    assert cut.returncode != 0, cut.stdout
    assert "AttributeError" not in cut.stdout, "the point is called otherwise now"
    assert point == "committed" or "saved" not in cut.stdout
    done = mpirun(4, PROGRAM, name, "restore")
    assert done.returncode == 0, done.stdout
    assert any(f"restored {step}, " in done.stdout for step in CUTS[point]), done.stdout
    assert ", whole" in done.stdout


@pytest.mark.parametrize("point", due(["verified", "rebuilding", "rebuilt"]))
def test_a_restore_is_cut_off(mpirun: Run, name: str, point: str) -> None:
    saved = mpirun(4, PROGRAM, name, "save", "2")
    assert saved.returncode == 0, saved.stdout
    for path, _ in slots.found(name):
        if "-3." in path.name:
            path.unlink()
    cut = mpirun(4, PROGRAM, name, "restore", point, "0,1,2,3")
    assert cut.returncode != 0, cut.stdout
    assert "AttributeError" not in cut.stdout, "the point is called otherwise now"
    assert "restored" not in cut.stdout
    done = mpirun(4, PROGRAM, name, "restore")
    assert done.returncode == 0, done.stdout
    assert "restored 2, skipped 0, whole" in done.stdout


@pytest.mark.parametrize("ranks", [3, 6])
def test_another_number_of_ranks(mpirun: Run, name: str, ranks: int) -> None:
    saved = mpirun(4, PROGRAM, name, "save", "2")
    assert saved.returncode == 0, saved.stdout
    done = mpirun(ranks, PROGRAM, name, "reshape")
    assert done.returncode == 0, done.stdout
    assert f"reshaped 2 to {ranks}" in done.stdout


def test_a_rank_is_lost_and_the_others_go_on(launch: Run, mpi_library: str, name: str) -> None:
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "4", "--"]
    done = launch([*command, PROGRAM, name, "attempts", "shrink", "1"])
    assert done.stdout.count("done 6 with 3 of epoch 1") == 3, done.stdout
    assert not list(slots.found(name))


@pytest.mark.cluster
@pytest.mark.timeout(150)
def test_a_node_is_lost_with_its_memory_and_spares_get_its_state(
    launch: Run, mpi_library: str, name: str
) -> None:
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's jobs end with the first rank that dies")
    lab = ["lab", "--nodes", "4", "--per-node", "2", "--spares", "2", "--faults", "--"]
    command = [sys.executable, "-m", "closeranks", *lab, PROGRAM, name]
    done = launch([*command, "attempts", "replace", "2,3"], timeout_s=120)
    if done.returncode == 1 and "not available" in done.stdout:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.stdout.count("done 6 with 8 of epoch 1") == 8, done.stdout
