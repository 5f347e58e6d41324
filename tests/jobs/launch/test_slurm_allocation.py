"""What is read from SLURM's variables, and the jobs described from it."""

from __future__ import annotations

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.launch import slurm_srun
from closeranks.jobs.launch.job_description import Host
from closeranks.jobs.launch.run_command import describe
from closeranks.jobs.launch.slurm_srun import Allocation

UNEVEN = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_JOB_CPUS_PER_NODE": "4,2,1(x2)",
    "SLURM_TASKS_PER_NODE": "4,2,1(x2)",
}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in UNEVEN.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in UNEVEN:
        monkeypatch.delenv(name, raising=False)


def test_an_allocation_is_read() -> None:
    expected = Allocation(("n1", "n2", "n3", "n4"), (4, 2, 1, 1), (4, 2, 1, 1))
    assert slurm_srun.current(UNEVEN) == expected
    assert slurm_srun.current({}) is None


@pytest.mark.parametrize(("ranks", "fullest"), [(8, 4), (3, 3), (1, 1), (40, 10)])
def test_the_fullest_node_is_never_underestimated(ranks: int, fullest: int) -> None:
    found = slurm_srun.current(UNEVEN)
    assert found is not None
    assert found.fullest(ranks) == fullest


def test_overcommitting_is_seen_per_node_or_over_all() -> None:
    found = slurm_srun.current(UNEVEN)
    assert found is not None
    assert not found.overcommitted({}, 8)
    assert found.overcommitted({}, 9)
    assert found.overcommitted({"n3": 2}, 2)
    assert not found.overcommitted({"n1": 2}, 2)


def test_a_node_set_that_cannot_be_read_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"--nodes n\[1-"):
        slurm_srun.expand("n[1-")


@pytest.mark.usefixtures("bare")
def test_ranks_yield_only_when_they_exceed_the_usable_cores() -> None:
    assert not describe(4, None, cores=4).crowded
    assert describe(5, None, cores=4).crowded


@pytest.mark.usefixtures("bare")
def test_ranks_are_shared_evenly_among_named_nodes() -> None:
    job = describe(7, "a,b,c", cores=3)
    assert job.hosts == (Host("a", 3), Host("b", 2), Host("c", 2))
    assert not job.crowded


@pytest.mark.usefixtures("slurm")
def test_inside_an_allocation_its_layout_counts() -> None:
    assert describe(8, None, cores=2).crowded
    assert not describe(8, None, cores=4).crowded
    assert describe(4, "n[3-4]", cores=4).overcommitted


@pytest.mark.usefixtures("bare")
def test_no_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        describe(2, "0", cores=2)


def test_settings_go_to_every_node_but_this_one(
    bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOSERANKS_CHECK", "1")
    assert not describe(4, None, cores=4).exported
    for nodes in ("other", "a,b"):
        assert "CLOSERANKS_CHECK" in describe(4, nodes, cores=4).exported
