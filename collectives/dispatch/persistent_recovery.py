"""What becomes of a persistent operation in a recovery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from closeranks.collectives.dispatch.startable_request import Startable
from closeranks.collectives.engine.ignored_errors import has_ended, is_gone
from closeranks.collectives.selection import call_options
from closeranks.comms.mpi.translate_ranks import ranks_in
from closeranks.errors import Revoked

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import Demand
    from closeranks.collectives.dispatch.dispatch import Service
    from closeranks.collectives.dispatch.request import Request
    from closeranks.collectives.engine.bound_plan import Bound

#: Operations whose buffers have one size for any number of ranks, and those with a root.
SIZELESS: Final = frozenset({"allreduce", "barrier", "bcast", "exscan", "reduce", "scan"})
ROOTED: Final = frozenset({"bcast", "gather", "gatherv", "reduce", "scatter", "scatterv"})


class Outliving(Startable):
    """A persistent operation that is made again at its first start after a recovery."""

    _service: Service
    _demand: Demand
    _call: tuple[Any, ...]
    _options: Any
    _root_seat: int
    _newcomers: Any
    _under_way: Request | None
    _bound: Bound | None
    _ready: MPI.Prequest | None
    _left: MPI.Prequest | None
    _stale: bool
    _running: bool
    _closed: bool
    _void: bool
    _owed: bool

    @property
    def under_way(self) -> bool:
        """Whether it has been started and not been waited for."""
        return self._running or (
            self._under_way is not None and self._under_way != MPI.REQUEST_NULL
        )

    def revoke(self) -> None:
        """Serve no more starts before the communicator has recovered."""
        if not self._closed:
            self._owed = self.under_way
            self._closed = self._stale = True
            self._void = self._void or not self._is_through()
            self._bound = None
            if self._void or not self._running:  # else who waits has still to look at it
                self._left = self._ready if self._running else None
                self._ready = None

    def spoil(self) -> None:
        """Note that nobody is to have the result of a start that is to be repeated."""
        if self._running and self._ready is not None:
            self._left = self._ready
        self._void = self._void or self._owed or self.under_way

    def _is_through(self) -> bool:
        """Tell whether nothing is under way but what has ended well.  Local."""
        if self._running:
            return self._ready is not None and has_ended(self._ready)
        return self._under_way is None or self._under_way.has_ended

    def is_gone(self) -> bool:
        """Tell whether the library is through with a start that was revoked.

        Local.

        Returns
        -------
        bool
            If not, it may still write where the result was to be.
        """
        return self._left is None or is_gone(self._left)

    def _bind_again(self) -> None:
        """Be what the communicator makes of the same call after a recovery.  Collective."""
        service, demand = self._service, self._demand
        service.gate.refuse_shut(demand.operation)
        service.family.world.check(demand.operation)
        problem = self._outlived(service)
        if problem:
            raise Revoked(demand.operation, problem=problem, remedy="make a new one", for_good=True)
        token = call_options.ACTIVE.set(self._options)
        try:
            fresh = service.prepare(demand.operation, *self._call)
        finally:
            call_options.ACTIVE.reset(token)
        fresh._options = self._options
        service.world.disown(fresh)
        lock = self.__dict__.get("_lock")  # for who advances it meanwhile
        self._drop_handle()
        self.__class__, self.__dict__ = type(fresh), fresh.__dict__
        self._inherit_handle(fresh)
        if lock is not None and "_lock" in self.__dict__:
            self.__dict__["_lock"] = lock
        service.world.own(self)

    def _outlived(self, service: Service) -> str:
        """Say why it cannot be bound again, or nothing."""
        demand = self._demand
        if not self._stale:
            return "the persistent operation is closed"
        if self._newcomers != service.family.newcomers:
            return "newcomers make theirs in an order that the others cannot know"
        if demand.size != service.size and demand.operation not in SIZELESS:
            return f"its buffers are for {demand.size} ranks, there are {service.size}"
        if demand.operation in ROOTED and (
            demand.root >= service.size or self._root_seat != seat_of(service, demand.root)
        ):
            return f"rank {demand.root} is another process now"
        return ""


def seat_of(service: Service, rank: int) -> int:
    """Give the seat of a rank, whatever the epoch."""
    world = service.family.world
    return world.seats[ranks_in(service.plain, world.comm)[rank]]
