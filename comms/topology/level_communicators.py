"""Communicators for the groups of a topology, owned and freed together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from closeranks.comms.topology.topology import Topology
from closeranks.errors import TopologyError, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI


class Groups:
    """Sub-communicators by level and by rail, made at their first use.

    A communicator is made by a split of the whole ``comm``, so every rank of
    it asks for the same ones in the same order.  They belong to this object:
    `close` frees them, and so does leaving the ``with`` block.

    Parameters
    ----------
    comm : Intracomm
        The ranks of the topology; borrowed, not freed.
    topology : Topology
        Equal on every rank.

    Raises
    ------
    TopologyError
        If their sizes differ.

    Examples
    --------
    ::

        with Groups(comm, topology) as groups:
            node = groups.level("node")
            across = groups.rail("node")
    """

    def __init__(self, comm: MPI.Intracomm, topology: Topology) -> None:
        if comm.size != topology.size:
            problem = f"the communicator has {comm.size} ranks, the topology {topology.size}"
            raise TopologyError("groups", problem, "use topology.restrict or discover(comm)")
        self._comm = comm
        self._topology = topology
        self._made: dict[tuple[str, str], MPI.Intracomm] = {}
        self._closed = False

    def level(self, name: str) -> MPI.Intracomm:
        """Return the communicator of this rank's group.

        **Collective** over ``comm`` at the first call for a level, then local.

        Parameters
        ----------
        name : str
            A level of the topology.

        Returns
        -------
        Intracomm
            Ranks in ascending order; freed by `close`, not by the caller.

        Raises
        ------
        UsageError
            If the groups were closed.
        TopologyError
            If there is no such level.
        """
        row = self._topology.groups[self._topology.position(name)]
        return self._split("level", name, int(row[self._comm.rank]))

    def rail(self, name: str) -> MPI.Intracomm:
        """Return the communicator that joins this rank's peers across groups.

        The k-th members of all groups of the level inside one parent group;
        groups with fewer members have none in the higher rails.
        **Collective** over ``comm`` at the first call for a level, then local.

        Parameters
        ----------
        name : str
            A level of the topology.

        Returns
        -------
        Intracomm
            One rank of each group, groups in ascending order; freed by
            `close`, not by the caller.

        Raises
        ------
        UsageError
            If the groups were closed.
        TopologyError
            If there is no such level.
        """
        i, rank = self._topology.position(name), self._comm.rank
        group = int(self._topology.groups[i, rank])
        place = int(np.searchsorted(self._topology.members(name, group), rank))
        parent = int(self._topology.groups[i - 1, rank]) if i else 0
        # ranks of a parent group outnumber its rails: its first ranks name them
        inside = self._topology.members(self._topology.levels[i - 1], parent) if i else None
        return self._split("rail", name, place if inside is None else int(inside[place]))

    def _split(self, kind: str, name: str, color: int) -> MPI.Intracomm:
        if self._closed:
            raise UsageError("groups", "they were closed", "make new ones")
        if (kind, name) not in self._made:
            made: Any = self._comm.Split(color, self._comm.rank)
            self._made[kind, name] = made
        return self._made[kind, name]

    def close(self) -> None:
        """Free all communicators made here.

        **Collective** over each of them; harmless twice.
        """
        from mpi4py import MPI

        self._closed = True
        made, self._made = self._made, {}
        for comm in made.values():
            if comm != MPI.COMM_NULL and not MPI.Is_finalized():
                comm.Free()

    def __enter__(self) -> Groups:
        """Return the groups themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close after success; after an exception other ranks may be missing."""
        if kind is None:
            self.close()
        else:
            self._closed = True
