"""What communicators are made from: what is wrong with it, in words.

Everything here is local.

What ranks do together before they make a communicator.

Communicators made from one of ours are ours too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from closeranks.collectives.arguments import native_handover
from closeranks.collectives.engine.error_translation import explaining
from closeranks.comms import argument
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.node_peers import split_by_node
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.tracked_communicators import TrackedCommunicators


#: What is wrong, and the way out.
Problem = tuple[str, str]
_REMEDY: Final = "give what the method of MPI.Intracomm takes"
#: What a C int holds.
_MOST: Final = 2**31


def number(name: str, value: Any, least: int = -_MOST) -> Problem | None:
    """Say what keeps a value from being a C int, or None."""
    try:
        argument.whole("", name, value, least=least, below=_MOST)
    except UsageError as wrong:
        return wrong.problem, wrong.remedy
    return None


def color_of(value: Any) -> Problem | None:
    """Say what keeps a value from being a color, or None."""
    if isinstance(value, int) and value == MPI.UNDEFINED:
        return None
    problem = number("color", value, 0)
    return problem and (problem[0], f"{problem[1]}, or MPI.UNDEFINED")


def subgroup(value: Any) -> Problem | None:
    """Say what keeps a value from being a group, or None."""
    if isinstance(value, MPI.Group) and value != MPI.GROUP_NULL:
        return None
    return f"group is {argument.shown(value)}", "give an MPI.Group, such as Get_group().Incl(ranks)"


def hints(value: Any) -> Problem | None:
    """Say what keeps a value from being hints, or None."""
    if value is None or isinstance(value, MPI.Info):
        return None
    return f"info is {argument.shown(value)}", "give an MPI.Info, or none"


@contextmanager
def refusing(method: str) -> Iterator[None]:
    """Turn what mpi4py, not the library, says of arguments into `UsageError`."""
    try:
        yield
    except UsageError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as wrong:
        raise UsageError(method, f"{type(wrong).__name__}: {wrong}", _REMEDY) from wrong


class Gathering(MPI.Intracomm):
    """A communicator whose ranks come together, so that nobody waits for ever."""

    _service: Service

    def _asked(self, method: str, problem: Problem | None) -> MPI.Intracomm:
        """Refuse on all ranks what cannot be had on one; else see ourselves as `_alias`."""
        alias, careful = self._alias(), self._service.careful
        with explaining(method, alias, self._service.family.world):
            mine = 0.0 if problem is None else 1.0 + careful.rank
            refusing_rank = int(native_handover.agreed_max(careful, [mine])[0]) - 1
            told = careful.bcast(problem, refusing_rank) if refusing_rank >= 0 else None
        if problem is not None:
            raise UsageError(method, *problem)
        if told is not None:
            raise UsageError(method, f"rank {refusing_rank}: {told[0]}", told[1])
        return alias

    def _alias(self) -> MPI.Intracomm:
        """See ourselves as mpi4py's own class."""
        return MPI.Intracomm(self)

    def _gathered(self) -> MPI.Intracomm:
        """See ourselves as mpi4py's own class, when all ranks have come."""
        plain = self._alias()
        if not ulfm.is_on():  # there the library ends who waits for one that does not come
            with explaining("derive", plain, self._service.family.world):
                self._service.careful.Barrier()
        return plain

    def _shaped(self, method: str, *arguments: Any) -> Any:
        """Make a communicator with a topology, which is mpi4py's own."""
        plain = self._gathered()
        with refusing(method):
            return self._followed.made(partial(getattr(plain, method), *arguments), plain.Barrier)

    @property
    def _followed(self) -> TrackedCommunicators:
        """Who revokes what is not ours."""
        raise UsageError("derive", f"{self!r} belongs to no family", "use closeranks.init")


class Deriving(Gathering):
    """The constructors of `MPI.Intracomm`, returning closeranks communicators.

    All are collective, as in MPI.  What they make belongs to the family: it is
    revoked and closed with the communicator that `closeranks.init` made.  After a
    recovery `Split`, `Split_type` and `Dup` are made again of those who are left,
    under the same objects; what came of a group or of `Idup` is of no use any
    more.  Arguments that one rank cannot use raise `UsageError` on all ranks.

    Topologies and intercommunicators are mpi4py's own.  They are revoked with the
    family too, but never made again; the program frees them.
    """

    _service: Service

    def _derive(
        self,
        made: MPI.Comm,
        color: int | None = MPI.UNDEFINED,
        key: int = 0,
        *,
        counts: bool = True,
    ) -> Communicator:
        """Take a communicator of some of our ranks into the family.

        With a color, or None for one of its ranks' own, it is made again after a
        recovery.  It counts if all ranks have made one.
        """
        del color, key, counts
        raise UsageError("derive", f"{made} belongs to no family", "use closeranks.init")

    def _met(self, made: Communicator) -> Communicator:
        """Give what all have made: who has it revokes it, and some may have failed."""
        if not ulfm.is_on():
            return made
        try:
            self._alias().Barrier()
        except Exception:
            if made != MPI.COMM_NULL:
                made._forsake()  # nobody gets it
            raise
        return made

    def Clone(self) -> Communicator:
        """Duplicate this communicator, attributes and hints included."""
        return self._met(self._derive(self._gathered().Clone(), 0, self.rank))

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
        alias = self._asked("Dup", hints(info))
        return self._met(self._derive(alias.Dup(info), 0, self.rank))

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
        alias = self._asked("Dup_with_info", hints(info))
        return self._met(self._derive(alias.Dup_with_info(info), 0, self.rank))

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
        return self._met(self._derive(self._asked("Create", subgroup(group)).Create(group)))

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
        if problem := subgroup(group) or number("tag", tag, 0):
            raise UsageError("Create_group", *problem)
        plain = self._alias()
        with self._service.family.notices.inside:
            made = plain.Create_group(group, tag)
        return self._derive(made, counts=False)

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
        alias = self._asked("Split", color_of(color) or number("key", key))
        return self._met(self._derive(alias.Split(color, key), color, key))

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
        problem = number("split_type", split_type) or number("key", key) or hints(info)
        alias = self._asked("Split_type", problem)
        # Who stays out says so by MPI.UNDEFINED, which is below all types.
        if native_handover.agreed_max(alias, [float(split_type)]) == [float(MPI.COMM_TYPE_SHARED)]:
            node = split_by_node(alias, key, enters=split_type != MPI.UNDEFINED)
            return self._met(self._derive(node, None, key))
        with refusing("Split_type"):
            made = alias.Split_type(split_type, key, info)
        return self._met(self._derive(made, None, key))

    def _duplicate(
        self, start: Callable[[Communicator], tuple[Communicator, MPI.Request]]
    ) -> tuple[Communicator, MPI.Request]:
        """Start to make a communicator that joins the family at its first use."""
        del start
        raise UsageError("derive", f"{self!r} belongs to no family", "use closeranks.init")

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
        return self._followed.started(self._alias(), lambda alias: MPI.Comm.Idup(alias))

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
        return self._duplicate(lambda ours: MPI.Comm.Idup(ours, info))

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
        return self._duplicate(lambda ours: MPI.Comm.Idup_with_info(ours, info))

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
        made: MPI.Cartcomm = self._shaped("Create_cart", dims, periods, reorder)
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
        made: MPI.Graphcomm = self._shaped("Create_graph", index, edges, reorder)
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
        made: MPI.Distgraphcomm = self._shaped(
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
        made: MPI.Distgraphcomm = self._shaped(
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
        plain = self._alias()
        with self._service.family.notices.inside:
            return self._followed.between(plain, local_leader, peer_comm, remote_leader, tag)
