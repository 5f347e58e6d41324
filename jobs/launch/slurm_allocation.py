"""What SLURM gave this job: its nodes, their CPUs and tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from closeranks.errors import UsageError


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
