"""The constructors of communicators from others: signatures and contracts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from closeranks.collectives.communicator.adoption import Adopted

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator


class Deriving(Adopted):
    """The constructors of `MPI.Intracomm`, returning closeranks communicators.

    All are collective, as in MPI.  What they make belongs to the family: it is
    revoked and closed with the communicator that `closeranks.init` made.  After a
    recovery `Split`, `Split_type` and `Dup` are made again of those who are left,
    under the same objects; what came of a group or of `Idup` is of no use any
    more.  Arguments that one rank cannot use raise `UsageError` on all ranks.

    Topologies and intercommunicators are mpi4py's own.  They are revoked with the
    family too, but never made again; the program frees them.
    """

    def Clone(self) -> Communicator:
        """Duplicate this communicator, attributes and hints included."""
        return self._children.clone()

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
        return self._children.duplicate(info)

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
        return self._children.duplicate_with_info(info)

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
        return self._children.of_group(group)

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
        return self._children.of_callers(group, tag)

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
        return self._children.split(color, key)

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
        return self._children.split_type(split_type, key, info)

    def start_plain(self) -> tuple[MPI.Intracomm, MPI.Request]:
        """Start to duplicate this communicator for what needs none of its algorithms.

        Collective; nobody is waited for.

        Returns
        -------
        comm : MPI.Intracomm
            mpi4py's own, revoked with the family; to be used once the request is
            through.
        request : MPI.Request
            To be waited for.
        """
        return self._children.start_plain()

    def Idup(self, info: MPI.Info | None = None) -> tuple[Communicator, MPI.Request]:
        """Start to duplicate this communicator.

        Parameters
        ----------
        info : MPI.Info, optional
            Hints of the duplicate.

        Returns
        -------
        comm : Communicator
            To be used once the request is through.
        request : MPI.Request
            To be waited for.
        """
        return self._children.start_duplicate(lambda ours: MPI.Comm.Idup(ours, info))

    def Idup_with_info(self, info: MPI.Info) -> tuple[Communicator, MPI.Request]:
        """Start to duplicate this communicator with hints, see `Idup`.

        Parameters
        ----------
        info : MPI.Info
            Hints of the duplicate.

        Returns
        -------
        comm : Communicator
            To be used once the request is through.
        request : MPI.Request
            To be waited for.
        """
        return self._children.start_duplicate(lambda ours: MPI.Comm.Idup_with_info(ours, info))

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> MPI.Cartcomm:
        """Arrange the ranks in a grid.

        Parameters
        ----------
        dims : sequence of int
            Ranks in each dimension.
        periods : sequence of bool, optional
            Which dimensions are rings; none if not given.
        reorder : bool
            Whether ranks may be other ones than here.

        Returns
        -------
        MPI.Cartcomm
            MPI.COMM_NULL on ranks left out.
        """
        made: MPI.Cartcomm = self._children.shaped("Create_cart", dims, periods, reorder)
        return made

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> MPI.Graphcomm:
        """Arrange the ranks in a graph that every rank knows.

        Parameters
        ----------
        index : sequence of int
            Node -> number of neighbours of it and of the nodes before.
        edges : sequence of int
            Neighbours of all nodes.
        reorder : bool
            Whether ranks may be other ones than here.

        Returns
        -------
        MPI.Graphcomm
            MPI.COMM_NULL on ranks left out.
        """
        made: MPI.Graphcomm = self._children.shaped("Create_graph", index, edges, reorder)
        return made

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> MPI.Distgraphcomm:
        """Arrange the ranks in a graph; each gives its own neighbours.

        Parameters
        ----------
        sources, destinations : sequence of int
            Ranks with an edge to this one, and from it.
        sourceweights, destweights : sequence of int, optional
            Weights of those edges.
        info : MPI.Info
            Hints.
        reorder : bool
            Whether ranks may be other ones than here.

        Returns
        -------
        MPI.Distgraphcomm
            Of all ranks.
        """
        made: MPI.Distgraphcomm = self._children.shaped(
            "Create_dist_graph_adjacent",
            sources,
            destinations,
            sourceweights,
            destweights,
            info,
            reorder,
        )
        return made

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> MPI.Distgraphcomm:
        """Arrange the ranks in a graph; each gives some edges, of any ranks.

        Parameters
        ----------
        sources : sequence of int
            Where edges begin.
        degrees : sequence of int
            How many begin at each of them.
        destinations : sequence of int
            Where they end.
        weights : sequence of int, optional
            Their weights.
        info : MPI.Info
            Hints.
        reorder : bool
            Whether ranks may be other ones than here.

        Returns
        -------
        MPI.Distgraphcomm
            Of all ranks.
        """
        made: MPI.Distgraphcomm = self._children.shaped(
            "Create_dist_graph", sources, degrees, destinations, weights, info, reorder
        )
        return made

    def Create_intercomm(
        self, local_leader: int, peer_comm: MPI.Intracomm, remote_leader: int, tag: int = 0
    ) -> MPI.Intercomm:
        """Make a communicator of these ranks and those of another communicator.

        Parameters
        ----------
        local_leader : int
            A rank here.
        peer_comm : MPI.Intracomm
            Has both leaders; of this family, or no failure in the making is told.
        remote_leader : int
            Rank in ``peer_comm`` of the other side's.
        tag : int
            Of messages of the leaders.

        Returns
        -------
        MPI.Intercomm
            Of both sides.
        """
        return self._children.between(local_leader, peer_comm, remote_leader, tag)
