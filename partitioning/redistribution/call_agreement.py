"""The ranks of a call agree that they can do it, in one small all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.comms.topology.topology import Topology
from closeranks.errors import Disagreement, UsageError
from closeranks.partitioning.layout.layout import Layout

_WHERE: Final = "redistribute"
_ALL: Final = 2**64 - 1


class Stated(NamedTuple):
    """What one rank brings into a call.

    Attributes
    ----------
    problem : UsageError or None
        What keeps it from taking part.
    layouts, dtype : int
        Digests of layouts with limit, and of the element.
    needs : tuple of int
        0 or 1 each: what all do together if any rank needs it.
    """

    problem: UsageError | None
    layouts: int
    dtype: int
    needs: tuple[int, int]


def digest(*parts: bytes) -> int:
    """Give a number of 64 bits that tells bytes apart.

    Parameters
    ----------
    *parts : bytes
        Their bounds count, too.

    Returns
    -------
    int
        The same in every process.
    """
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return int.from_bytes(found.digest(), "little")


def layout_bytes(layout: Layout) -> bytes:
    """Give what makes a layout, as bytes that are the same in every process.

    Parameters
    ----------
    layout : Layout
        The layout.

    Returns
    -------
    bytes
        Shape, placements, bounds, and the order of the ranks.
    """
    words = repr((layout.global_shape, layout.placements, layout.mesh.shape)).encode()
    order = layout.mesh.ranks
    cuts = b"".join(cut.tobytes() for cut in layout.bounds)
    return words + digest(order.tobytes(), cuts).to_bytes(8, "little")


def topology_bytes(topology: Topology | None) -> bytes:
    """Give the groups of a topology as bytes.

    Parameters
    ----------
    topology : Topology, optional
        The machine.

    Returns
    -------
    bytes
        Empty without one.
    """
    return b"" if topology is None else topology.groups.tobytes()


def agreed(
    comm: MPI.Intracomm, mine: Stated, told: Callable[[], tuple[str, str]]
) -> tuple[bool, bool]:
    """Find out that all ranks can do a call, and what any of them needs.

    Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    mine : Stated
        What this rank brings in.
    told : callable
        Gives its layouts and its dtype in words, for errors.

    Returns
    -------
    (bool, bool)
        Whether any rank needs each thing.

    Raises
    ------
    UsageError
        On all ranks, if one of them has a problem, or dtypes differ.
    Disagreement
        On all ranks, if layouts or limits differ.
    """
    failed = int(mine.problem is not None)
    numbers = np.array(
        [failed, *mine.needs, mine.layouts, mine.layouts ^ _ALL, mine.dtype, mine.dtype ^ _ALL],
        np.uint64,
    )
    most = np.empty_like(numbers)
    comm.Allreduce(numbers, most, MPI.MAX)
    found = most.tolist()
    if found[0]:
        for rank, problem in enumerate(comm.allgather(mine.problem)):
            if problem is not None:
                raise _of_rank(problem, rank)
    if found[3] != found[4] ^ _ALL:
        raise Disagreement(_WHERE, dict(enumerate(comm.allgather(told()[0]))))
    if found[5] != found[6] ^ _ALL:
        kinds: dict[str, list[int]] = {}
        for rank, kind in enumerate(comm.allgather(told()[1])):
            kinds.setdefault(kind, []).append(rank)
        said = ", ".join(f"{kind} on rank {ranks[0]}" for kind, ranks in kinds.items())
        raise UsageError(_WHERE, f"dtypes differ: {said}", "give the same dtype on every rank")
    return bool(found[1]), bool(found[2])


def _of_rank(problem: UsageError, rank: int) -> UsageError:
    """Give a problem as all ranks tell it."""
    return type(problem)(problem.operation, f"rank {rank}: {problem.problem}", problem.remedy)


def agreed_most(comm: MPI.Intracomm, numbers: list[int]) -> list[int]:
    """Give the largest of each number over all ranks.

    Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    numbers : list of int
        As many on all ranks.

    Returns
    -------
    list of int
        As many.
    """
    mine = np.array(numbers, np.int64)
    most = np.empty_like(mine)
    comm.Allreduce(mine, most, MPI.MAX)
    found: list[int] = most.tolist()
    return found


def exchanged(comm: Any, numbers: list[list[int]]) -> list[list[int]]:
    """Give each rank its list of numbers; returns those that the others have given.

    Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.
    numbers : list of list of int
        By receiver.

    Returns
    -------
    list of list of int
        By sender.
    """
    found: list[list[int]] = comm.alltoall(numbers)
    return found
