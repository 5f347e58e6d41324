"""``closeranks run``: a program on N ranks, by whatever launcher is here."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from closeranks.comms.discovery.node_hardware import usable_cores, whole_cores
from closeranks.comms.settings import refuse_unknown, runs_compiled, setting, switch
from closeranks.errors import UsageError
from closeranks.jobs.launch import mpi_library, program, slurm_srun
from closeranks.jobs.launch.job_description import Host, Job
from closeranks.jobs.launch.launch import Launch, launch_all
from closeranks.jobs.launch.launcher_choice import check_survives, choose

#: What a call that lacks an option is told, for it may stand behind the program.
OPTIONS_FIRST: Final = "before the program: options behind it are its own"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "ranks", type=click.IntRange(1), help="Number of ranks; required.")
@click.option("--nodes", help="How many nodes of the allocation, or which: 2, n[1-3], a,b.")
@click.option("--faults", is_flag=True, help="Go on when ranks die (Open MPI's mpirun).")
@click.option("--spares", type=click.IntRange(0), default=0, help="More ranks, which wait.")
@click.option("--launcher", help="mpirun, mpiexec or srun; found by itself if not given.")
@click.argument("words", nargs=-1, required=True, metavar="-- PROGRAM [ARGUMENTS]...")
def run(
    ranks: int | None,
    nodes: str | None,
    faults: bool,
    spares: int,
    launcher: str | None,
    words: tuple[str, ...],
) -> None:
    """Start PROGRAM on N ranks with the flags its MPI library needs.

    The full command is written on standard error; the exit status is the
    program's.  A PROGRAM that ends in .py is run with this Python.
    """
    if ranks is None:
        raise UsageError("run", "no number of ranks", f"add -n 4 {OPTIONS_FIRST}")
    settings = settings_of(spares, faults=faults)
    check_settings(ranks)
    launch = prepare(ranks + spares, words, nodes=nodes, launcher=launcher, faults=faults)
    raise SystemExit(launch_all(launch, program.resolve(words), settings))


def prepare(
    ranks: int,
    words: tuple[str, ...],
    *,
    nodes: str | None = None,
    launcher: str | None = None,
    faults: bool = False,
) -> Launch:
    """Find library and launcher for a program and fit them together.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    words : tuple of str
        Program and arguments as given by the user.
    nodes : str, optional
        Number of nodes or a node set.
    launcher : str, optional
        Name or path of the launcher.
    faults : bool, optional
        Whether the job goes on when ranks die; srun cannot, so it is not chosen.

    Returns
    -------
    Launch
        Ready to start.

    Raises
    ------
    UsageError
        If launcher and library do not belong together, or the nodes cannot
        be had.
    Unavailable
        If ``faults`` asks for what library or launcher cannot do.
    """
    if program.inside_a_job():
        raise UsageError("run", "called inside an MPI job", "start the program itself there")
    linked = mpi_library.of_python(program.python_of(program.resolve(words)))
    chosen = choose(linked, launcher, srun_first=not faults)
    if faults:
        check_survives(chosen)
    job = replace(describe(ranks, nodes, cores=usable_cores()), faults=faults)
    if job.nodes and chosen.kind != "srun":  # only srun chooses nodes by number
        job = replace(job, nodes=None, hosts=_hosts(ranks, _first_nodes(job.nodes)))
    return Launch(job, linked, chosen)


def check_settings(ranks: int) -> None:
    """Refuse settings that every rank would, and faults of ranks that are none.

    Local; reads the environment.

    Parameters
    ----------
    ranks : int
        How many there will be.

    Raises
    ------
    UsageError
        If one means nothing.
    """
    refuse_unknown()
    switch("CHECK")
    switch("REMEMBER")
    runs_compiled()
    text = setting("FAULTS")
    if not text:
        return
    from closeranks.collectives.engine.fault_injection import schedule

    schedule(text, ranks)


def settings_of(spares: int, *, faults: bool) -> dict[str, str]:
    """Say how the ranks are told how many of them wait.

    Local.

    Parameters
    ----------
    spares : int
        How many.
    faults : bool
        Whether the job goes on when ranks die.

    Returns
    -------
    dict of str to str
        Variables that every rank gets.

    Raises
    ------
    UsageError
        If it does not, so that nobody would ever be replaced.
    """
    if spares and not faults:
        raise UsageError(
            "--spares", f"{spares} ranks would wait for ever", f"add --faults {OPTIONS_FIRST}"
        )
    return {"CLOSERANKS_SPARES": str(spares)} if spares else {}


def describe(ranks: int, nodes: str | None, *, cores: int) -> Job:
    """Describe a job on this machine or on nodes of an allocation.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    nodes : str or None
        Number of nodes, or a node set such as ``n[1-3]``.
    cores : int
        Usable cores of a node, taken to be those of this one.

    Returns
    -------
    Job
        The job.
    """
    count = _number_of_nodes(nodes)
    hosts = _hosts(ranks, slurm_srun.expand(nodes)) if nodes and not count else ()
    given = slurm_srun.current()
    spread = len(hosts) or count or (len(given.names) if given else 1)
    free = given is not None and not hosts and not count
    fullest = given.fullest(ranks) if given and free else math.ceil(ranks / spread)
    settings = sorted(name for name in os.environ if name.startswith("CLOSERANKS_"))
    here = not hosts and not count and (given is None or given.names == (_own_name(),))
    return Job(
        ranks,
        hosts=hosts,
        nodes=count,
        crowded=fullest > cores,
        paired=fullest > whole_cores(),
        overcommitted=given is not None and given.overcommitted(dict(hosts), ranks),
        root=os.geteuid() == 0,
        fabric=has_fabric(),
        exported=() if here else settings,
        here=here,
    )


def _own_name() -> str:
    """Give the name that SLURM has for this machine, if it has one."""
    return socket.gethostname().partition(".")[0]


def _hosts(ranks: int, names: list[str]) -> tuple[Host, ...]:
    """Share ranks evenly among named nodes."""
    shares = [len(range(i, ranks, len(names))) for i in range(len(names))]
    return tuple(Host(name, share) for name, share in zip(names, shares, strict=True) if share)


def _first_nodes(count: int) -> list[str]:
    """Name the first nodes of this allocation."""
    given = slurm_srun.current()
    if given is None:
        raise UsageError(
            "run", f"--nodes {count} outside a SLURM allocation", "name the nodes: --nodes a,b"
        )
    if count > len(given.names):
        have = len(given.names)
        raise UsageError("run", f"--nodes {count}, the allocation has {have}", "ask for fewer")
    return list(given.names[:count])


def _number_of_nodes(nodes: str | None) -> int | None:
    """Read a plain number of nodes; None if it is a node set."""
    if nodes is None or not nodes.isdigit():
        return None
    if int(nodes) < 1:
        raise UsageError("run", f"--nodes {nodes}", "ask for at least 1 node")
    return int(nodes)


def has_fabric(folder: Path = Path("/sys/class/infiniband")) -> bool:
    """Say whether this node has InfiniBand or RoCE devices.

    Parameters
    ----------
    folder : Path, optional
        Where the kernel lists them.

    Returns
    -------
    bool
        True if there is at least one.
    """
    return folder.is_dir() and any(folder.iterdir())
