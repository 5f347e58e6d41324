"""Discovery inside an allocation of a real SLURM with a tree of switches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from closeranks.comms.topology.topology import Topology
from tests.cluster.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

PROGRAM = """\
import sys
from mpi4py import MPI
import closeranks as cr
topology = cr.discover()
assert all(t == topology for t in MPI.COMM_WORLD.allgather(topology))
if MPI.COMM_WORLD.rank == 0:
    open(sys.argv[1], "w").write(topology.to_json())
"""


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_switches_come_from_slurm(slurm: Slurm, tmp_path: Path, launcher: str) -> None:
    program, target = tmp_path / "program.py", tmp_path / "topology.json"
    program.write_text(PROGRAM)
    salloc = ["salloc", "-Q", "-N4", "--ntasks-per-node=2", sys.executable, "-m", "closeranks"]
    run = ["run", "-n", "8", "--launcher", launcher, "--", str(program), str(target)]
    done = slurm.run(*salloc, *run, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    topology = Topology.from_json(target.read_text())
    assert topology.sizes("node").tolist() == [2, 2, 2, 2]
    if launcher == "srun":
        assert topology.levels == ("switch", "node", "rank")
        assert topology.sizes("switch").tolist() == [4, 4]
