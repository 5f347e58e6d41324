"""Discovery and measuring where the truth is known: an emulated cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from closeranks.comms.topology.topology import Topology
from tests.cluster.child import closeranks

PROGRAM = """\
import sys
from mpi4py import MPI
import closeranks as cr
from closeranks.comms.discovery.link_survey import measure, quick
topology = cr.discover()
fast = quick(MPI.COMM_WORLD, topology)
assert all(t == fast for t in MPI.COMM_WORLD.allgather(fast))
if sys.argv[2] == "measure":
    topology = measure(MPI.COMM_WORLD, topology)
assert all(t == topology for t in MPI.COMM_WORLD.allgather(topology))
if MPI.COMM_WORLD.rank == 0:
    open(sys.argv[1], "w").write(topology.to_json())
"""
WIRE = 0.957  # share of a wire's rate that is TCP payload at an MTU of 1500
TOLERANCE = 0.10


def discovered(tmp_path: Path, *lab: str, measure: bool = False) -> Topology:
    """Run the program in a lab and read what it found."""
    program, target = tmp_path / "program.py", tmp_path / "topology.json"
    program.write_text(PROGRAM)
    mode = "measure" if measure else "discover"
    done = closeranks("lab", *lab, "--", str(program), str(target), mode, timeout_s=110)
    if done.returncode == 1 and "not available" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(target.read_text())["version"] == 1
    return Topology.from_json(target.read_text())


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nodes_and_rates_are_those_of_the_lab(tmp_path: Path) -> None:
    lab = ("--nodes", "4", "--per-node", "2", "--rate", "200mbit")
    topology = discovered(tmp_path, *lab, measure=True)
    assert topology.levels == ("node", "rank")
    assert topology.groups[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    link = topology.links["node"]
    assert link.source == "measured"
    assert link.bytes_per_s == pytest.approx(WIRE * 200e6 / 8, rel=TOLERANCE)
    assert link.rails == 1


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_sites_and_several_cards(tmp_path: Path) -> None:
    rates = ("--rate", "200mbit", "--sites", "2", "--site-rate", "50mbit", "--nics", "2")
    topology = discovered(tmp_path, "--nodes", "4", "--per-node", "2", *rates, measure=True)
    assert topology.levels == ("site", "node", "rank")
    assert topology.groups[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert topology.links["node"].bytes_per_s == pytest.approx(WIRE * 25e6, rel=TOLERANCE)
    assert topology.links["node"].rails == 2
    assert topology.links["site"].bytes_per_s == pytest.approx(WIRE * 6.25e6, rel=TOLERANCE)
    assert topology.links["site"].rails == 1


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_uneven_nodes_dealt_round_robin(tmp_path: Path) -> None:
    lab = ("--nodes", "3", "--per-node", "3,2,2", "--order", "round-robin")
    topology = discovered(tmp_path, *lab)
    assert topology.levels == ("node", "rank")
    assert topology.groups[0].tolist() == [0, 1, 2, 0, 1, 2, 0]
