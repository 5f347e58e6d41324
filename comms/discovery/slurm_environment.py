"""A task's position in SLURM's topology, from the environment alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from closeranks.errors import TopologyError

_LONGEST = 4096
_DEEPEST = 8


class Address(NamedTuple):
    """A node's place in SLURM's network topology.

    Parameters
    ----------
    levels : tuple of str
        Level names above the node, outermost first.
    labels : tuple of str
        The node's switch, block, ring or torus at each level.
    coordinates : tuple of int
        Position on a ring or in a torus, () elsewhere.
    """

    levels: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    coordinates: tuple[int, ...] = ()


def address(environ: Mapping[str, str], host: str) -> Address:
    """Read SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN.

    Parameters
    ----------
    environ : mapping of str to str
        A task's environment.
    host : str
        The node's host name: an address that ends with another node was
        inherited from elsewhere and is left out.

    Returns
    -------
    Address
        Empty outside SLURM, without a topology plugin, or if inherited.

    Raises
    ------
    TopologyError
        If address and pattern do not fit each other.

    Notes
    -----
    Tree: ``spine.leaf.n1`` with ``switch.switch.node``; the leaf's level is
    "switch", those above it "switch2", "switch3".  Block: ``b1.n1`` with
    ``block.node``.  Ring: ``r0:3.n1`` with ``ring:position.node``.  Torus:
    ``t:1:0:2.n1`` with ``torus:x:y:z.node``; a ring or torus is one level.
    """
    text = environ.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    kinds = pattern.split(".")
    if not text or kinds[-1] != "node" or len(kinds) < 2:
        return Address()
    parts = text.split(".", len(kinds) - 1)
    if len(text) > _LONGEST or len(kinds) > _DEEPEST + 1 or len(parts) != len(kinds):
        problem = f"SLURM_TOPOLOGY_ADDR={text[:80]!r} does not fit the pattern {pattern[:80]!r}"
        raise TopologyError("discover", problem, "unset both, or report the SLURM version")
    names = {environ.get("SLURMD_NODENAME", host), host, host.split(".")[0]}
    if parts[-1] not in names:
        return Address()
    heads = [kind.split(":")[0] for kind in kinds[:-1]]
    numbers = [number for part in parts[:-1] for number in part.split(":")[1:]]
    labels = tuple(part.split(":")[0] for part in parts[:-1])
    coordinates = tuple(int(n) for n in numbers if n.isdigit())
    return Address(_distinct(heads), labels, coordinates)


def _distinct(heads: list[str]) -> tuple[str, ...]:
    """Tell equal level names apart, counting from the innermost outwards."""
    names: list[str] = []
    for i, head in enumerate(heads):
        again = heads[i + 1 :].count(head)
        names.append(f"{head}{again + 1}" if again else head)
    return tuple(names)


def job_nodes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes of the job in SLURM's order.

    Parameters
    ----------
    environ : mapping of str to str
        A task's environment; after a node was lost its list is stale.

    Returns
    -------
    tuple of str
        Host names in numeric order, () outside SLURM.

    Raises
    ------
    TopologyError
        If SLURM_JOB_NODELIST is no node list.
    """
    text = environ.get("SLURM_JOB_NODELIST", "")
    if not text:
        return ()
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        return tuple(str(node) for node in NodeSet(text))
    except NodeSetException as error:
        problem = f"SLURM_JOB_NODELIST={text[:80]!r} ({error})"
        raise TopologyError("slurm", problem, "give a list such as n[1-4,7]") from None
