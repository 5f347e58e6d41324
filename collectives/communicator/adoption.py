"""A handle that a family has adopted, and the parts that do its work.

The parts know each other in one direction: `Closing` and `Children` use the
`Membership`, which uses the `Service`.  Each keeps its state for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from mpi4py import MPI

from closeranks.collectives.communicator.children import Children
from closeranks.collectives.communicator.closing import Closing
from closeranks.collectives.communicator.membership import Membership
from closeranks.comms.exit import forked_child
from closeranks.errors import WrongHandle

if TYPE_CHECKING:
    from typing_extensions import Self

    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.engine.tracked_communicators import TrackedCommunicators
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.comms.topology.topology import Topology

#: What `Adopted.adopt` sets.
_PARTS: Final = frozenset({"_closing", "_membership", "_service"})


class Adopted(MPI.Intracomm):
    """A handle, and what serves its calls, knows its members and ends it.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        The handle to take over; `adopt` makes the object work.
    """

    _service: Service
    _membership: Membership
    _closing: Closing
    _come: Callable[[], None]

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Self:
        """Make the object around a handle; `adopt` makes it work."""
        return MPI.Intracomm.__new__(cls, comm)

    if not TYPE_CHECKING:  # what is not there is an error for a type checker

        def __getattr__(self, name: str) -> Any:
            """Be adopted at first use, where that has had to wait, see `adopt_later`."""
            come = self.__dict__.get("_come") if name in _PARTS else None
            if come is None and name in (*_PARTS, "_children"):
                raise WrongHandle(
                    type(self).__name__,
                    "it is a handle of no communicator of ours",
                    "make it by closeranks.init",
                )
            if come is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            come()
            del self._come
            return getattr(self, name)

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        """Be another handle of a communicator, as ``type(comm)(comm)`` makes them."""
        if isinstance(comm, Adopted):
            self.__dict__ = comm.__dict__
            forked_child.guard_object(self)

    @classmethod
    def adopt(
        cls,
        plain: MPI.Intracomm,
        family: Family,
        topology: Topology,
        *,
        chooser: Chooser,
        world: World | None = None,
        seats: tuple[int, ...],
        parent: Membership | None = None,
        into: Self | None = None,
    ) -> Self:
        """Make a communicator around an MPI communicator.

        Local; the world is opened when the first plan is needed.

        Parameters
        ----------
        plain : MPI.Intracomm
            The communicator; freed by `Communicator.close`.
        family : Family
            Options it shares with others.
        topology : Topology
            Where its ranks sit.
        chooser : Chooser
            Who chooses algorithms.
        world : World, optional
            What carries plans, if it is there already.
        seats : tuple of int
            Rank -> rank in the first world.
        parent : Membership, optional
            Of the communicator that it was derived from.
        into : Adopted, optional
            The object, where it is there already.

        Returns
        -------
        Adopted
            Of the same ranks.
        """
        made = cls(plain) if into is None else into
        membership = Membership(
            made, plain, family, topology, chooser=chooser, world=world, seats=seats, parent=parent
        )
        made._membership, made._service = membership, membership.service
        made._closing = Closing(membership)
        forked_child.guard_object(made)
        return made

    def adopt_later(self, come: Callable[[], None]) -> None:
        """Let the family adopt this object at its first use.  Local.

        Parameters
        ----------
        come : callable
            Calls `adopt`, or raises `UsageError` as long as that is too early.
        """
        self._come = come

    def become_child(self) -> None:
        """Let no call of a child that was forked take a shortcut.  Local."""
        self._service.shortcuts.become_child()

    @property
    def membership(self) -> Membership:
        """Who its members are, for recoveries and whatever else spans several calls."""
        return self._membership

    @property
    def _children(self) -> Children:
        """Makes communicators of the class of this object."""
        return Children(cast("Communicator", self), self._membership)

    @property
    def _followed(self) -> TrackedCommunicators:
        """Tells `TrackedCommunicators` which family it is of."""
        return self._membership.followed
