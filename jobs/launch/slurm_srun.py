"""The command line of SLURM's ``srun`` inside an allocation.

An `Allocation` has the nodes that SLURM gave this job, their CPUs and tasks.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from closeranks.errors import UsageError
from closeranks.jobs.launch import mpich_mpiexec, openmpi_mpirun
from closeranks.jobs.launch.job_description import Command, Job
from closeranks.jobs.launch.mpi_library import MpiLibrary


@dataclass(frozen=True)
class Allocation:
    """The nodes of a SLURM allocation.

    Parameters
    ----------
    names : tuple of str
        The nodes, in SLURM's order.
    cpus : tuple of int
        CPUs of each node.
    tasks : tuple of int
        Tasks that SLURM foresees on each node; empty if it says nothing.
    """

    names: tuple[str, ...]
    cpus: tuple[int, ...]
    tasks: tuple[int, ...] = ()

    def fullest(self, ranks: int) -> int:
        """Tell how many ranks the fullest node gets.

        Parameters
        ----------
        ranks : int
            Ranks on all nodes together.

        Returns
        -------
        int
            An upper bound, exact if `ranks` is what the job asked for.
        """
        even = -(-ranks // len(self.names))
        return max(even, min(ranks, max(self.tasks, default=0)))

    def overcommitted(self, shares: Mapping[str, int], ranks: int) -> bool:
        """Say whether there are more ranks than CPUs.

        Parameters
        ----------
        shares : mapping of str to int
            Ranks on nodes chosen by name; empty if SLURM chooses.
        ranks : int
            Ranks on all nodes together.

        Returns
        -------
        bool
            True if srun must be told to allow it.
        """
        cpus = dict(zip(self.names, self.cpus, strict=True))
        if shares:
            return any(share > cpus.get(name, share) for name, share in shares.items())
        return ranks > sum(self.cpus)


def current(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """Read the allocation this process is in.

    Parameters
    ----------
    environ : mapping of str to str, optional
        Environment variables.

    Returns
    -------
    Allocation or None
        None outside an allocation.
    """
    names = environ.get("SLURM_JOB_NODELIST")
    if "SLURM_JOB_ID" not in environ or not names:
        return None
    nodes = tuple(expand(names))
    cpus = repeated(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    tasks = repeated(environ.get("SLURM_TASKS_PER_NODE", ""))
    return Allocation(nodes, cpus if len(cpus) == len(nodes) else (1,) * len(nodes), tasks)


def repeated(text: str) -> tuple[int, ...]:
    """Read SLURM's short form of a list of numbers.

    Parameters
    ----------
    text : str
        For example ``4(x2),1``.

    Returns
    -------
    tuple of int
        For example (4, 4, 1).
    """
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        number, _, times = part.partition("(x")
        numbers += [int(number)] * int(times.rstrip(")") or 1)
    return tuple(numbers)


def expand(nodes: str) -> list[str]:
    """Expand a node set.

    Parameters
    ----------
    nodes : str
        For example ``n[1-3],m7``.

    Returns
    -------
    list of str
        Node names.

    Raises
    ------
    UsageError
        If it cannot be understood.
    """
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return [str(name) for name in NodeSet(nodes)]
    except NodeSetException as cause:
        raise UsageError("run", f"--nodes {nodes}: {cause}", "write n[1-3] or a,b") from cause


# The interface through which each library learns its ranks from srun.
PLUGINS = {"openmpi": "pmix", "mpich": "pmi2"}
# SLURM's fences in the form of a tree (its default for fences without data) let
# ranks out before all have arrived; MPI_Init then dies in the ranks behind. Its
# rings do not, but hang now and then between two nodes, where its default works.
FENCE = {"SLURM_PMIX_FENCE": "ring"}
TWO_NODES = 2


def plugins(path: str) -> set[str]:
    """Ask srun which MPI plugins it has.

    Parameters
    ----------
    path : str
        The ``srun`` to ask.

    Returns
    -------
    set of str
        For example ``{"none", "pmi2", "pmix"}``; empty if it cannot say.
    """
    try:
        done = subprocess.run(
            [path, "--mpi=list"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    if done.returncode != 0:
        return set()
    return set(re.findall(r"^\s+(\w+)\s*$", done.stdout + done.stderr, re.MULTILINE))


def command(
    path: str,
    job: Job,
    library: MpiLibrary,
    program: Sequence[str],
    environment: Mapping[str, str],
) -> Command:
    """Write the command that starts a program on all ranks of a step.

    Parameters
    ----------
    path : str
        The ``srun`` to use.
    job : Job
        Ranks, and their places.
    library : MpiLibrary
        The MPI library the program uses; decides the plugin.
    program : sequence of str
        Program and arguments.
    environment : mapping of str to str
        Variables every rank gets.

    Returns
    -------
    Command
        Words and environment.
    """
    words = [path, f"--mpi={PLUGINS.get(library.kind, 'none')}", "-n", str(job.ranks)]
    if job.hosts:
        names = ",".join(host.name for host in job.hosts)
        fullest = max(host.slots for host in job.hosts)
        words += ["-N", str(len(job.hosts)), "-w", names, f"--ntasks-per-node={fullest}"]
    elif job.nodes:
        words += ["-N", str(job.nodes)]
    if job.overcommitted:
        words.append("--overcommit")
    words += ["--overlap", "--kill-on-bad-exit=1"]
    return Command((*words, *program), {**_parameters(job, library), **environment})


def _parameters(job: Job, library: MpiLibrary) -> dict[str, str]:
    """Turn the library's parameters into environment variables."""
    if library.kind == "openmpi":
        chosen = {
            f"OMPI_MCA_{name}": value for name, value in openmpi_mpirun.parameters(job).items()
        }
        nodes = len(job.hosts) or job.nodes or int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
        fence = {} if nodes == TWO_NODES else FENCE
        return {**fence, **_numbered(job), **chosen}
    return mpich_mpiexec.parameters(job) if library.kind == "mpich" else {}


def _numbered(job: Job) -> dict[str, str]:
    """Give the plugin the step's nodes where it looks for those of the job.

    It numbers the nodes of a step, and looks the numbers up among the nodes of
    the job.  So a step that leaves out the first nodes waits in MPI_Init for
    ever.
    """
    return {"SLURM_JOB_NODELIST": ",".join(host.name for host in job.hosts)} if job.hosts else {}
