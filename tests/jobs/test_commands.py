"""The command lines built for each launcher, word by word."""

from __future__ import annotations

import pytest

from closeranks.comms.mpi import ulfm
from closeranks.errors import UsageError
from closeranks.jobs.launch import mpich_mpiexec, openmpi_mpirun, slurm_srun
from closeranks.jobs.launch.job_description import Host, Job, NodeReach
from closeranks.jobs.launch.mpi_library import MpiLibrary

NODES = (Host("a", 3), Host("b", 2), Host("c", 2))
REACH = NodeReach("/x/agent", "/x/hosts", "10.0.0.9", "10.0.0.0/24", "10.0.0.0/16", ("/x/rank",))
OPENMPI = MpiLibrary("openmpi", "5.0.11")
MPICH = MpiLibrary("mpich", "5.0.2")

OPENMPI_TABLE = [
    (Job(2, fabric=True), "mpirun -n 2 prog x"),
    (Job(2), "mpirun -n 2 --mca osc ^ucx prog x"),
    (
        Job(12, fabric=True, paired=True),
        "mpirun -n 12 --map-by :OVERSUBSCRIBE --bind-to none prog x",
    ),
    (Job(2, root=True, fabric=True), "mpirun --allow-run-as-root -n 2 prog x"),
    (
        Job(8, crowded=True, fabric=True),
        "mpirun -n 8 --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1 prog x",
    ),
    (
        Job(7, hosts=NODES, fabric=True, exported=("CLOSERANKS_CHECK",)),
        "mpirun -n 7 --host a:3,b:2,c:2 --map-by slot -x CLOSERANKS_CHECK prog x",
    ),
    (
        Job(7, hosts=NODES, fabric=True, order="round-robin", reach=REACH, crowded=True),
        (
            "mpirun -n 7 --map-by node --bind-to none --hostfile /x/hosts"
            " --prtemca plm_ssh_agent /x/agent --prtemca plm_ssh_no_tree_spawn 1"
            " --leave-session-attached"
            " --prtemca prte_if_include 10.0.0.0/24 --mca mpi_yield_when_idle 1"
            " --mca btl tcp,sm,self --mca btl_tcp_if_include 10.0.0.0/16 /x/rank prog x"
        ),
    ),
]


def test_ranks_that_may_start_others() -> None:
    starting = openmpi_mpirun.command(
        "mpirun", Job(2, fabric=True, faults=True, here=True), ["prog"], {}
    )
    assert starting.words[-4:] == ("/usr/bin/env", "-u", "EVENT_NOEPOLL", "prog")
    assert starting.environment["CLOSERANKS_RECRUITS"] == "1"
    elsewhere = openmpi_mpirun.command("mpirun", Job(2, hosts=NODES, faults=True), ["prog"], {})
    assert "CLOSERANKS_RECRUITS" not in elsewhere.environment
    assert elsewhere.words[-1] == "prog"


@pytest.mark.parametrize(("job", "expected"), OPENMPI_TABLE)
def test_mpirun_of_open_mpi(job: Job, expected: str) -> None:
    assert " ".join(openmpi_mpirun.command("mpirun", job, ["prog", "x"], {}).words) == expected


BY_TCP = {
    "btl_tcp_flags": "send,inplace",
    "btl_tcp_eager_limit": "64512",
    "btl_tcp_rndv_eager_limit": "64512",
    "btl_tcp_max_send_size": "64512",
}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job(2, faults=True), {"btl": "^sm,smcuda,ofi", **BY_TCP}),
        (
            Job(2, faults=True, here=True),
            {"btl": "^sm,smcuda,ofi", "btl_tcp_if_include": "127.0.0.0/8", **BY_TCP},
        ),
        (
            Job(2, hosts=NODES, faults=True, reach=REACH),
            {"btl": "tcp,self", "btl_tcp_if_include": "10.0.0.0/16", **BY_TCP},
        ),
        (Job(2), {}),
    ],
)
def test_no_rank_that_dies_can_break_the_queue_of_another(
    job: Job, expected: dict[str, str]
) -> None:
    chosen = openmpi_mpirun.parameters(job)
    assert {name: value for name, value in chosen.items() if "btl" in name} == expected


def test_libfabric_stays_away_where_it_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    assert openmpi_mpirun.parameters(Job(2, here=True))["btl"] == "^ofi"
    assert "btl" not in openmpi_mpirun.parameters(Job(2, hosts=NODES))


def test_the_transports_of_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_btl", "tcp,self")
    assert "btl" not in openmpi_mpirun.parameters(Job(2, here=True))


def test_what_collectives_send_at_once_fits_a_fragment() -> None:
    assert int(BY_TCP["btl_tcp_eager_limit"]) > ulfm.BRIEF_BYTES


def test_how_messages_are_cut_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_btl_tcp_max_send_size", "131072")
    assert not [name for name in openmpi_mpirun.parameters(Job(2, faults=True)) if "size" in name]


@pytest.mark.parametrize(("ranks", "tree"), [(128, "3"), (129, None)])
def test_agreements_of_small_jobs_go_by_a_star(ranks: int, tree: str | None) -> None:
    chosen = openmpi_mpirun.parameters(Job(ranks, faults=True))
    assert chosen.get("coll_ftagree_era_topology") == tree
    assert "coll_ftagree_era_topology" not in openmpi_mpirun.parameters(Job(ranks))


def test_nodes_of_a_lab_never_bind_to_the_same_core() -> None:
    job = Job(2, hosts=(Host("a", 1), Host("b", 1)), reach=REACH)
    assert "--bind-to none" in " ".join(openmpi_mpirun.command("mpirun", job, ["p"], {}).words)


def test_open_mpi_passes_variables_on_and_keeps_its_own_out_of_the_words() -> None:
    command = openmpi_mpirun.command(
        "mpirun", Job(1, fabric=True), ["p"], {"B": "2", "OMPI_MCA_coll": "x"}
    )
    assert " ".join(command.words) == "mpirun -n 1 -x B p"
    assert command.environment == {"B": "2", "OMPI_MCA_coll": "x"}


@pytest.mark.parametrize("job", [job for job, _ in OPENMPI_TABLE])
def test_the_librarys_collectives_are_left_alone(job: Job) -> None:
    assert not [name for name in openmpi_mpirun.parameters(job) if name.startswith("coll")]
    assert not [
        name for name in mpich_mpiexec.parameters(job) if "COLL" in name or "ALGORITHM" in name
    ]


MPICH_TABLE = [
    (Job(2), "mpiexec -n 2 prog x"),
    (Job(8, crowded=True), "mpiexec -genv MPIR_CVAR_ENABLE_HEAVY_YIELD 1 -n 8 prog x"),
    (Job(7, hosts=NODES), "mpiexec -hosts a:3,b:2,c:2 -n 7 prog x"),
    (
        Job(7, hosts=NODES, order="round-robin", reach=REACH),
        (
            "mpiexec -launcher ssh -launcher-exec /x/agent -localhost 10.0.0.9 -f /x/hosts -ppn 1"
            " -n 7 /x/rank prog x"
        ),
    ),
]


@pytest.mark.parametrize(("job", "expected"), MPICH_TABLE)
def test_mpiexec_of_mpich(job: Job, expected: str) -> None:
    assert " ".join(mpich_mpiexec.command("mpiexec", job, ["prog", "x"], {}).words) == expected


def test_hydra_cannot_deal_ranks_out_to_any_sizes() -> None:
    hosts = (Host("a", 2), Host("b", 3))
    with pytest.raises(UsageError, match="nodes of 2,3"):
        mpich_mpiexec.command(
            "mpiexec", Job(5, hosts=hosts, order="round-robin", reach=REACH), ["p"], {}
        )


SRUN_TABLE = [
    (
        OPENMPI,
        Job(8, fabric=True),
        "srun --mpi=pmix -n 8 --overlap --kill-on-bad-exit=1 p",
        {"SLURM_PMIX_FENCE": "ring"},
    ),
    (
        OPENMPI,
        Job(8, nodes=2, crowded=True, overcommitted=True),
        "srun --mpi=pmix -n 8 -N 2 --overcommit --overlap --kill-on-bad-exit=1 p",
        {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_osc": "^ucx"},
    ),
    (
        OPENMPI,
        Job(7, hosts=NODES, fabric=True),
        "srun --mpi=pmix -n 7 -N 3 -w a,b,c --ntasks-per-node=3 --overlap --kill-on-bad-exit=1 p",
        {"SLURM_PMIX_FENCE": "ring", "SLURM_JOB_NODELIST": "a,b,c"},
    ),
    (
        MPICH,
        Job(7, hosts=NODES, crowded=True),
        "srun --mpi=pmi2 -n 7 -N 3 -w a,b,c --ntasks-per-node=3 --overlap --kill-on-bad-exit=1 p",
        {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
    ),
]


@pytest.mark.parametrize(("library", "job", "words", "environment"), SRUN_TABLE)
def test_srun(library: MpiLibrary, job: Job, words: str, environment: dict[str, str]) -> None:
    command = slurm_srun.command("srun", job, library, ["p"], {})
    assert (" ".join(command.words), command.environment) == (words, environment)


@pytest.mark.parametrize(("order", "expected"), [("block", "aaabbcc"), ("round-robin", "abcabca")])
def test_seats_follow_the_order(order: str, expected: str) -> None:
    assert "".join(Job(7, hosts=NODES, order=order).seats()) == expected


def test_host_files_name_every_slot() -> None:
    job = Job(7, hosts=NODES)
    assert openmpi_mpirun.hostfile(job) == "a slots=3\nb slots=2\nc slots=2\n"
    assert mpich_mpiexec.hostfile(job) == "a:3\nb:2\nc:2\n"
