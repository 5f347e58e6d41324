"""``closeranks run`` inside an allocation of a real SLURM."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from closeranks.jobs.launch.mpi_library import MpiLibrary
from tests.cluster.child import said
from tests.cluster.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


def run(slurm: Slurm, *words: str, nodes: int = 4) -> tuple[int, list[list[str]], str]:
    """Call ``closeranks run`` at the head of an allocation of two tasks a node."""
    salloc = ["salloc", "-Q", f"-N{nodes}", "--ntasks-per-node=2"]
    done = slurm.run(*salloc, sys.executable, "-m", "closeranks", "run", *words, cwd=Path.cwd())
    return done.returncode, said(done.stdout), done.stderr


def test_srun_is_used_with_the_plugin_of_the_library(
    slurm: Slurm, rank: str, linked: MpiLibrary
) -> None:
    status, ranks, errors = run(slurm, "-n", "8", "--", rank)
    assert status == 0, errors
    assert ranks == [[str(i), "8", f"n{i // 2 + 1}", "2"] for i in range(8)]
    assert f"srun --mpi={'pmix' if linked.kind == 'openmpi' else 'pmi2'} -n 8" in errors


def test_the_librarys_own_launcher_works_too(slurm: Slurm, rank: str) -> None:
    status, ranks, errors = run(slurm, "-n", "8", "--launcher", "mpirun", "--", rank)
    assert status == 0, errors
    assert Counter(host for _, _, host, _ in ranks) == {f"n{i}": 2 for i in range(1, 5)}
    assert {size for _, _, _, size in ranks} == {"2"}


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
@pytest.mark.parametrize(("nodes", "expected"), [("2", {"n1", "n2"}), ("n[2-3]", {"n2", "n3"})])
def test_nodes_are_chosen_by_number_or_by_name(
    slurm: Slurm, rank: str, launcher: str, nodes: str, expected: set[str]
) -> None:
    words = ("-n", "4", "--nodes", nodes, "--launcher", launcher, "--", rank)
    status, ranks, errors = run(slurm, *words)
    assert status == 0, errors
    assert Counter(host for _, _, host, _ in ranks) == dict.fromkeys(expected, 2)


def test_more_nodes_than_allocated_are_refused(slurm: Slurm, rank: str) -> None:
    words = ("-n", "4", "--nodes", "5", "--launcher", "mpirun", "--", rank)
    status, _, errors = run(slurm, *words)
    assert status == 2
    assert "the allocation has 4" in errors


def test_the_programs_status_comes_through_srun(slurm: Slurm) -> None:
    assert run(slurm, "-n", "1", "--", "sh", "-c", "exit 3", nodes=1)[0] == 3


def test_srun_outside_an_allocation_is_refused(slurm: Slurm) -> None:
    words = ("run", "-n", "2", "--launcher", "srun", "--", "true")
    done = slurm.run(sys.executable, "-m", "closeranks", *words, cwd=Path.cwd())
    assert done.returncode == 2
    assert "outside a SLURM allocation" in done.stderr
