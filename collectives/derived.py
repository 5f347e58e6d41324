"""Communicators made from one of ours are ours too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives import native
from closeranks.comms.neighbours import neighbours
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator import Communicator


class Deriving(MPI.Intracomm):
    """The constructors of `MPI.Intracomm`, returning closeranks communicators.

    All are collective, as in MPI.  What they make belongs to the family: it is
    revoked and closed with the communicator that `closeranks.init` made.  After a
    recovery `Split`, `Split_type` and `Dup` are made again of those who are left,
    under the same objects; what came of a group is of no use any more.
    """

    def _derive(
        self, made: MPI.Comm, color: int | None = MPI.UNDEFINED, key: int = 0
    ) -> Communicator:
        """Take a communicator of some of our ranks into the family.

        With a color, or None for one of its ranks' own, it is made again after a
        recovery.
        """
        del color, key
        raise UsageError("derive", f"{made} belongs to no family", "use closeranks.init")

    def _alias(self) -> MPI.Intracomm:
        """See ourselves as mpi4py's own class."""
        return MPI.Intracomm(self)

    def Clone(self) -> Communicator:
        """Duplicate this communicator, attributes and hints included."""
        return self._derive(self._alias().Clone(), 0, self.rank)

    def Dup(self, info: MPI.Info | None = None) -> Communicator:
        """Duplicate this communicator.

        Parameters
        ----------
        info : MPI.Info, optional
            Hints of the duplicate.

        Returns
        -------
        Communicator
            The same ranks; messages of the two never meet.
        """
        return self._derive(self._alias().Dup(info), 0, self.rank)

    def Dup_with_info(self, info: MPI.Info) -> Communicator:
        """Duplicate this communicator with hints.

        Parameters
        ----------
        info : MPI.Info
            Hints of the duplicate.

        Returns
        -------
        Communicator
            The same ranks.
        """
        return self._derive(self._alias().Dup_with_info(info), 0, self.rank)

    def Create(self, group: MPI.Group) -> Communicator:
        """Make a communicator of a subgroup.

        Parameters
        ----------
        group : MPI.Group
            The same on every rank.

        Returns
        -------
        Communicator
            MPI.COMM_NULL on ranks left out.
        """
        return self._derive(self._alias().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Communicator:
        """Make a communicator of a subgroup; only its members call.

        Parameters
        ----------
        group : MPI.Group
            The same on every member.
        tag : int
            Tells concurrent calls apart.

        Returns
        -------
        Communicator
            Of the members.
        """
        return self._derive(self._alias().Create_group(group, tag))

    def Split(self, color: int = 0, key: int = 0) -> Communicator:
        """Make one communicator of all ranks with the same color.

        Parameters
        ----------
        color : int
            Which one this rank enters; MPI.UNDEFINED: none.
        key : int
            Orders its ranks; ties keep the order they have here.

        Returns
        -------
        Communicator
            MPI.COMM_NULL on ranks left out.
        """
        return self._derive(self._alias().Split(color, key), color, key)

    def Split_type(
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> Communicator:
        """Make communicators of ranks that share something.

        Parameters
        ----------
        split_type : int
            For instance MPI.COMM_TYPE_SHARED: the ranks that see one /dev/shm.
        key : int
            Orders its ranks; ties keep the order they have here.
        info : MPI.Info
            Hints; none are known for MPI.COMM_TYPE_SHARED.

        Returns
        -------
        Communicator
            MPI.COMM_NULL on ranks left out.
        """
        alias = self._alias()
        # Who stays out says so by MPI.UNDEFINED, which is below all types.
        if native.agreed_max(alias, [float(split_type)]) == [float(MPI.COMM_TYPE_SHARED)]:
            node = neighbours(alias, key, enters=split_type != MPI.UNDEFINED)
            return self._derive(node, None, key)
        return self._derive(alias.Split_type(split_type, key, info), None, key)
