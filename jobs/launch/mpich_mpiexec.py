"""The command line of MPICH's ``mpiexec`` (Hydra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from closeranks.errors import UsageError
from closeranks.jobs.launch.job_description import Command, Job


def parameters(job: Job) -> dict[str, str]:
    """List the variables that a job needs beyond the library's defaults.

    Parameters
    ----------
    job : Job
        Ranks, and their places.

    Returns
    -------
    dict of str to str
        Environment variables of the library.
    """
    if not job.crowded:
        return {}
    # Sleep a moment instead of sched_yield, which hands the core to nobody here:
    # 1 KiB all-reduce over 8 ranks on 2 cores 2 ms instead of 15.
    return {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}


def command(path: str, job: Job, program: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Write the command that starts a program on all ranks.

    Parameters
    ----------
    path : str
        The ``mpiexec`` to use.
    job : Job
        Ranks, and their places; with `job.reach` the host file must exist (see
        `hostfile`).
    program : sequence of str
        Program and arguments.
    environment : mapping of str to str
        Variables every rank gets.

    Returns
    -------
    Command
        Words and environment.
    """
    words = [path]
    if job.reach is not None:
        words += ["-launcher", "ssh", "-launcher-exec", job.reach.agent]
        words += ["-localhost", job.reach.head, "-f", job.reach.hostfile]
        words += _placement(job)
    elif job.hosts:
        words += ["-hosts", ",".join(f"{host.name}:{host.slots}" for host in job.hosts)]
    variables = {**parameters(job), **environment}
    for name in sorted(variables):
        words += ["-genv", name, variables[name]]
    prefix = job.reach.prefix if job.reach else ()
    words += ["-n", str(job.ranks), *prefix, *program]
    return Command(tuple(words), {})


def hostfile(job: Job) -> str:
    """Write the host file that places every rank.

    Parameters
    ----------
    job : Job
        A job with named hosts.

    Returns
    -------
    str
        One host and its slots a line.
    """
    return "".join(f"{host.name}:{host.slots}\n" for host in job.hosts)


def _placement(job: Job) -> list[str]:
    """Say in which order the nodes are filled."""
    if job.order == "block":
        return []
    # Hydra deals ranks out in full rounds and looks at no slots meanwhile.
    names = [host.name for host in job.hosts]
    if job.seats() != [names[rank % len(names)] for rank in range(job.ranks)]:
        slots = ",".join(str(host.slots) for host in job.hosts)
        raise UsageError(
            "lab",
            f"MPICH's mpiexec cannot deal ranks round-robin to nodes of {slots}",
            "let the sizes differ by 1 at most, the larger nodes first: 3,2,2",
        )
    return ["-ppn", "1"]
