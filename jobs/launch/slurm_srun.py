"""The command line of SLURM's ``srun`` inside an allocation."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from closeranks.jobs.launch import mpich_mpiexec, openmpi_mpirun
from closeranks.jobs.launch.job_description import Command, Job
from closeranks.jobs.launch.mpi_library import Library

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
    library: Library,
    program: Sequence[str],
    environment: Mapping[str, str],
) -> Command:
    """Write the command that starts a program on all ranks of a step.

    Parameters
    ----------
    path : str
        The ``srun`` to use.
    job : Job
        What is to be started.
    library : Library
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


def _parameters(job: Job, library: Library) -> dict[str, str]:
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

    It numbers the nodes of a step and looks the numbers up among those of the
    job: a step that leaves out the first ones then waits in MPI_Init for ever.
    """
    return {"SLURM_JOB_NODELIST": ",".join(host.name for host in job.hosts)} if job.hosts else {}
