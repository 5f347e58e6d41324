"""Discovery, groups and measuring on real ranks of one machine."""

from __future__ import annotations

import math
import platform
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.comms.discovery import discovery as discovering
from closeranks.comms.discovery import link_survey as measuring
from closeranks.comms.discovery.link_survey import measure, quick, survey
from closeranks.comms.mpi import ulfm
from closeranks.comms.topology.level_communicators import Groups
from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError


def test_all_ranks_find_the_same_machine(comm: MPI.Intracomm) -> None:
    found = cr.discover(comm)
    assert found.size == comm.size
    assert {"node", "rank"} <= set(found.levels)
    assert found.count("node") == len(set(comm.allgather(platform.node())))
    assert all(other == found for other in comm.allgather(found))
    assert found.devices.of_node


@pytest.mark.parametrize("most", [1 << 15, 0])
def test_all_hear_all_where_ranks_may_die(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(ulfm, "is_on", lambda: True)
    monkeypatch.setattr(ulfm, "BRIEF_BYTES", most)
    rank, size = comm.rank, comm.size
    own, counts = np.full(3 * rank, rank, np.uint8), 3 * np.arange(size)
    found = discovering._of_all(comm, own, counts)
    assert np.array_equal(found, np.repeat(np.arange(size), counts))


def test_it_leaves_nothing_behind(comm: MPI.Intracomm) -> None:
    for _ in range(3):
        cr.discover(comm)
    assert not comm.iprobe()


def test_sites_come_from_the_environment(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSERANKS_SITE", "here")
    assert cr.discover(comm).levels[0] == "node"


def test_a_machine_that_no_leader_can_read_is_an_error_everywhere(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSERANKS_SITE", "x" * 100)
    with pytest.raises(TopologyError, match=r"node .*: CLOSERANKS_SITE has 100 characters"):
        cr.discover(comm)


def test_hardware_that_cannot_be_read_is_an_error_everywhere(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("a disk is on fire")

    if comm.rank == 0:
        monkeypatch.setattr(discovering, "describe_here", fail)
    with pytest.raises(TopologyError, match="OSError: a disk is on fire"):
        cr.discover(comm)


def test_the_page_runs(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm.size < MPI.COMM_WORLD.size:
        return
    page = Path(__file__).resolve().parents[2] / "docs" / "topology.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert len(examples) >= 3
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:  # one a rank: pytest's would be shared
        monkeypatch.chdir(folder)
        for example in examples:
            exec(example, names)
        assert comm.rank > 0 or Path("machine.svg").exists()
        monkeypatch.undo()


def test_host_names_that_contradict_mpi_are_an_error_everywhere(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "node", lambda: f"other{comm.rank}")
    monkeypatch.setattr(discovering, "boot_id", lambda _: f"boot{comm.rank}")
    if comm.size == 1:
        assert cr.discover(comm).count("node") == 1
        return
    with pytest.raises(TopologyError, match="rank 1 on 'other1' shares memory with rank 0"):
        cr.discover(comm)


def dealt(size: int) -> Topology:
    """Nodes of at most two ranks, dealt round-robin: a map we made up."""
    nodes = math.ceil(size / 2)
    return Topology.from_groups(("node", "rank"), [[r % nodes for r in range(size)], range(size)])


def test_groups_and_rails(comm: MPI.Intracomm) -> None:
    topology = dealt(comm.size)
    with Groups(comm, topology) as groups:
        node, rail = groups.level("node"), groups.rail("node")
        assert groups.level("node") is node
        mine = int(topology.groups[0, comm.rank])
        members = topology.members("node", mine).tolist()
        assert node.allgather(comm.rank) == members
        place = members.index(comm.rank)
        every = [topology.members("node", g).tolist() for g in range(topology.count("node"))]
        assert rail.allgather(comm.rank) == [m[place] for m in every if place < len(m)]
        assert groups.level("rank").size == 1
        assert groups.rail("rank").allgather(comm.rank) == members
    assert node == MPI.COMM_NULL
    groups.close()
    with pytest.raises(UsageError, match="closed"):
        groups.level("node")


def test_groups_of_another_world_are_refused(comm: MPI.Intracomm) -> None:
    with pytest.raises(TopologyError, match=r"communicator has \d ranks, the topology 9"):
        Groups(comm, Topology.regular(rank=9))
    with pytest.raises(TopologyError, match=r"communicator has \d ranks, the topology 9"):
        quick(comm, Topology.regular(rank=9))


def test_links_are_measured_and_agreed(comm: MPI.Intracomm) -> None:
    topology = dealt(comm.size)
    found = measure(comm, topology, budget_s=0.5)
    assert all(other == found for other in comm.allgather(found))
    assert found.groups is not None
    for name in topology.levels:
        met = topology.count(name) > (1 if name == "node" else topology.count("node"))
        assert (found.links[name].source == "measured") == met
        if met:
            assert 0 < (found.links[name].latency_s or 0) < 0.1
            assert 1e6 < (found.links[name].bytes_per_s or 0) < 1e12


def test_every_rail_is_measured_alone_and_all_at_once(comm: MPI.Intracomm) -> None:
    if comm.size < 4:
        assert {s.kind for s in survey(comm, dealt(comm.size), budget_s=0)} <= {"latency", "alone"}
        return
    samples = [s for s in survey(comm, dealt(4), budget_s=0) if s.level == "node"]
    alone = {(s.rail, s.sender) for s in samples if s.kind == "alone"}
    together = {(s.rail, s.sender) for s in samples if s.kind == "together"}
    assert alone == together == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_pair_in_doubt_is_measured_again(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size < 4:
        pytest.skip("needs two nodes of two ranks")
    seen: list[set[tuple[str, int, int]]] = [{("node", 0, 1)}, set()]
    monkeypatch.setattr(measuring, "doubtful", lambda _: seen.pop(0) if seen else set())
    together = [s for s in survey(comm, dealt(4), budget_s=20) if s.kind == "together"]
    assert sorted((s.rail, s.sender) for s in together if s.level == "node") == sorted(
        [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
    )


def test_quick_is_quick_and_agreed(comm: MPI.Intracomm) -> None:
    topology = dealt(comm.size)
    found = quick(comm, topology)
    start = MPI.Wtime()
    found = quick(comm, topology)
    spent_s = comm.allreduce(MPI.Wtime() - start, MPI.MAX)
    assert spent_s < 1.0  # 0.05 s where nobody else uses the cores
    assert all(other == found for other in comm.allgather(found))
    if comm.size > 1:
        assert "measured" in {link.source for link in found.links.values()}
