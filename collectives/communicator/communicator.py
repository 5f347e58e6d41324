"""The communicator: an `MPI.Intracomm` whose collectives know the hierarchy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.communicator.blocking import Blocking, Nonblocking
from closeranks.collectives.communicator.closing import Closing
from closeranks.collectives.communicator.derived_communicators import Deriving
from closeranks.collectives.communicator.late_methods import late
from closeranks.collectives.communicator.object_calls import Objects
from closeranks.collectives.communicator.persistent_calls import Prepared
from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.dispatch.dispatch import Service, foretell
from closeranks.collectives.dispatch.injected_dispatch import Faulty
from closeranks.collectives.engine.epoch_world import World
from closeranks.collectives.engine.init_state import alike
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.fastpath.shortcut import Shortcuts
from closeranks.collectives.faults.survivor_creation import Lineage
from closeranks.collectives.reduction.op import MEAN
from closeranks.collectives.selection import call_options
from closeranks.collectives.selection.tuning_table import shape
from closeranks.collectives.shm import shared_arrays
from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import deferred_free
from closeranks.comms.mpi.mpi_handle import ranks_in
from closeranks.errors import Error, Unavailable, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from closeranks.collectives.communicator.gradient_buckets import Buckets
    from closeranks.collectives.engine.call_guard import Statistics
    from closeranks.collectives.engine.init_state import Family
    from closeranks.collectives.engine.tracked_communicators import TrackedCommunicators
    from closeranks.collectives.reduction.op import Mean
    from closeranks.collectives.selection.chooser import Chooser
    from closeranks.collectives.selection.explanation import Explanation
    from closeranks.comms.topology.topology import Topology


#: What `Communicator.adopt` sets.
_PARTS = frozenset(
    {"_family", "_is_first", "_lineage", "_made_s", "_parent", "_seats", "_service", "_topology",
     "_world"}
)  # fmt: skip


class Communicator(Blocking, Nonblocking, Prepared, Deriving, Objects, Closing):
    """A communicator made by `closeranks.init`, or derived from one.

    It takes the place of ``MPI.COMM_WORLD`` anywhere: windows, files, h5py,
    petsc4py.  Leave it by the ``with`` block, or `close` it.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        The handle to take over; `adopt` makes the object work.
    """

    _come: Callable[[], None]

    def __new__(cls, comm: MPI.Intracomm | None = None) -> Communicator:
        """Make the object around a handle; `adopt` makes it work."""
        return MPI.Intracomm.__new__(cls, comm)

    def __getattr__(self, name: str) -> Any:
        """Become one of the family at first use, where that has had to wait, see `Idup`."""
        come = self.__dict__.get("_come") if name in _PARTS else None
        if come is None and name == "_service":
            raise UsageError(type(self).__name__, "it is a handle of no communicator of ours",
                             "make it by closeranks.init")  # fmt: skip
        if come is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        come()
        del self._come
        return getattr(self, name)

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        """Be another handle of a communicator, as ``type(comm)(comm)`` makes them."""
        if isinstance(comm, Communicator):
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
        into: Communicator | None = None,
    ) -> Communicator:
        """Make a communicator around an MPI communicator.

        Local; the world is opened when the first plan is needed.

        Parameters
        ----------
        plain : MPI.Intracomm
            The communicator; freed by `close`.
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
        into : Communicator, optional
            The object, where it is there already.

        Returns
        -------
        Communicator
            Of the same ranks.
        """
        made = cls(plain) if into is None else into
        made._family, made._seats, made._topology = family, seats, topology
        made._world, made._lineage, made._parent = world, Lineage(), None
        serve = Service if family.faults is None else Faulty
        made._service = serve(
            plain, family, made._open_world, chooser, Shortcuts(made), family.notices.count(seats)
        )
        made._is_first, made._made_s = world is not None, time.monotonic()
        deferred_free.notify_on_free(made, made._be_freed)
        forked_child.guard_object(made)
        return made

    def become_child(self) -> None:
        """Let no call of a child that was forked take a shortcut.  Local."""
        self._service.shortcuts.allow(False)

    def explain(self, operation: str, nbytes: int, dtype: DTypeLike = "float32") -> Explanation:
        """Say which algorithm a call would use, and why.

        Local.

        Parameters
        ----------
        operation : str
            For instance ``"allreduce"``.
        nbytes : int
            Bytes of the vector, or of one rank's block.
        dtype : dtype
            Element, for operations that reduce.

        Returns
        -------
        Explanation
            Printable; ``.algorithm``, ``.predicted_s``, ``.bytes_per_level`` and
            ``.candidates``.

        Raises
        ------
        UsageError
            If there is no such operation, size or type (local).
        """
        return foretell(self._service, operation, nbytes, argument.element_type("explain", dtype))

    def statistics(self) -> Statistics:
        """Give this rank's counters since `init`.

        Returns
        -------
        Statistics
            Of this communicator alone, not of those derived from it.
        """
        return self._service.statistics()

    @contextmanager
    def using(
        self,
        *,
        algorithm: str | Mapping[str, str] = "auto",
        timeout_s: float | None = None,
        compression: object = None,
        wire: DTypeLike | None = None,
    ) -> Iterator[None]:
        """Set options for the calls of a ``with`` block.

        Collective; they concern this communicator, those derived from it and
        the one it was derived from, in the current context (`contextvars`).

        Parameters
        ----------
        algorithm : str or mapping of str to str
            "native", or one name for every operation that has it, or
            operation -> name.
        timeout_s : float, optional
            Deadline of each call, seconds; the first on what came of this has none.
        compression : optional
            Not available yet.
        wire : dtype, optional
            "float32": sums, products and means of float16 and bfloat16 travel and
            are combined in float32, twice the bytes, and are rounded once, at the
            end, on every rank.  Those of float32 are as without; those of other
            types raise `UsageError`.  Other reductions round nothing and are as
            without.  What is persistent keeps the wire it was made with.

        Yields
        ------
        None
            The options hold until the block ends.

        Raises
        ------
        Disagreement
            On every rank, if the ranks ask for different options.
        UsageError, Unavailable
            On every rank, if an option cannot be used.
        """
        refused: Error | None = None
        try:
            if compression is not None:
                raise Unavailable("compression in flight", "leave compression out")
            wanted = call_options.read(self._family, algorithm, timeout_s, wire)
            said = (
                algorithm if isinstance(algorithm, str) else dict(sorted(wanted.algorithms.items()))
            )
            words = f"algorithm {said!r}, timeout_s {timeout_s}, wire {wanted.wire}"
        except (UsageError, Unavailable) as wrong:
            refused, words = wrong, f"what is refused: {wrong}"
        with self._together("using"):
            agree_equal(self._service.careful, "using", words)
            if refused is not None:
                raise refused
            if timeout_s is not None:
                self._service.world.arm()
        inner = wanted.within(call_options.active(self._family))
        token = call_options.ACTIVE.set((*call_options.ACTIVE.get(), inner))
        self._family.override(+1)
        try:
            yield
        finally:
            self._family.override(-1)
            call_options.ACTIVE.reset(token)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = float) -> NDArray[Any]:
        """Make an array in memory that the node's ranks share.

        Collective; each rank gets one of its own, whose shape may differ.
        Kernels of the node read and write it where it lies, and copy nothing
        (docs/node.md).  After a recovery ask for a new one.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of this rank's array.
        dtype : dtype
            Its element.

        Returns
        -------
        ndarray
            Zeros; the memory is given back when all ranks of the node have
            dropped theirs.

        Raises
        ------
        UsageError, Unavailable
            On all ranks, if any asks for what no array can be, or its node has no
            memory left to share.
        """
        if not engine().in_flight:
            shared_arrays.let_go()
        with self._together("empty"):
            return shared_arrays.make(self._service.careful, self._service.world.node, shape, dtype)

    def bucketed(
        self,
        parameters: Mapping[str, NDArray[Any]],
        bucket_bytes: int = 25 << 20,
        op: MPI.Op | Mean = MEAN,
    ) -> Buckets:
        """Combine many arrays, a bucket at a time, while others are computed.

        Collective: every rank passes arrays of the same names, shapes and types
        in the same order.

        Parameters
        ----------
        parameters : mapping of str to ndarray
            The arrays; they take the results.
        bucket_bytes : int
            How much goes into one message, in bytes.
        op : MPI.Op or cr.MEAN
            The reduction.

        Returns
        -------
        Buckets
            ``.ready(name)`` in any order of names, the same on all ranks or not;
            ``.wait()``.

        Raises
        ------
        Disagreement
            On every rank, if the ranks pass different arrays.
        """
        with self._together("bucketed"):
            made: Buckets = late("bucketed")(self, parameters, bucket_bytes, op)
            return made

    def _open_world(self) -> World:
        """Open what carries plans; collective."""
        if self._world is None:
            first = self._family.world
            self._world = first.own(
                World(
                    first.epoch, self._service.plain, self._topology, seats=self._seats, whole=first
                )
            )
        return self._world

    def _alias(self) -> MPI.Intracomm:
        self._service.guard.refuse("derive")
        self._family.world.check("derive")
        return self._service.plain

    @property
    def _followed(self) -> TrackedCommunicators:
        return self._family.world.followed

    def _derive(
        self,
        made: MPI.Comm,
        color: int | None = MPI.UNDEFINED,
        key: int = 0,
        *,
        counts: bool = True,
    ) -> Communicator:
        if made == MPI.COMM_NULL:
            if counts:
                self._lineage.note(None, MPI.UNDEFINED, 0)
            return MPI.Intracomm(made)  # type: ignore[return-value]
        plain = MPI.Intracomm(made)
        ranks = ranks_in(plain, self._service.plain)
        topology = self._topology.restrict(ranks)
        was = self._service.chooser
        chooser = alike(was.numbers, shape(was.topology), topology)
        seats = tuple(self._seats[rank] for rank in ranks)
        child = type(self).adopt(plain, self._family, topology, chooser=chooser, seats=seats)
        child._parent = self
        if counts:
            self._lineage.note(child, min(ranks) if color is None else color, key)
        else:
            self._lineage.others.append(child)
        if self._family.timeout_s is not None:
            child._service.world.arm()
        return self._family.world.own(child)

    def _duplicate(
        self, start: Callable[[Communicator], tuple[Communicator, MPI.Request]]
    ) -> tuple[Communicator, MPI.Request]:
        self._alias()
        era, was, seats, topology = (
            self._family.world, self._service.chooser, self._seats, self._topology,
        )  # fmt: skip
        made, request = start(self)
        self._followed.follow(made, request)

        def come() -> None:
            if request != MPI.REQUEST_NULL and not request.Get_status():
                raise UsageError("Idup", "the duplicate is not there yet", "wait for its request")
            chooser = alike(was.numbers, shape(was.topology), topology)
            plain = MPI.Intracomm(made)
            self.adopt(plain, self._family, topology, chooser=chooser, seats=seats, into=made)
            made._parent = self
            if self._family.world is era:
                self._lineage.others.append(made)
                era.own(made)
            else:
                made._service.shut("it was made before a recovery")

        made._come = come
        return made, request
