"""The communicator: an `MPI.Intracomm` whose collectives know the hierarchy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

from closeranks.collectives.communicator.blocking import Blocking
from closeranks.collectives.communicator.derived_communicators import Deriving
from closeranks.collectives.communicator.late_methods import SPARSE_SUM, late
from closeranks.collectives.communicator.nonblocking import Nonblocking
from closeranks.collectives.communicator.object_calls import Objects
from closeranks.collectives.communicator.persistent_calls import Prepared
from closeranks.collectives.dispatch.argument_check import agree_equal
from closeranks.collectives.dispatch.forecast import foretell
from closeranks.collectives.engine.progress_engine import engine
from closeranks.collectives.reduction.op import MEAN, Mean, is_commutative
from closeranks.collectives.replicated import synchronization
from closeranks.collectives.selection import call_options
from closeranks.collectives.shm import shared_arrays
from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import ulfm
from closeranks.errors import Error, Unavailable, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self

    from closeranks.collectives.communicator.gradient_buckets import Buckets
    from closeranks.collectives.engine.call_guard import Statistics
    from closeranks.collectives.engine.fault_injection import Injection
    from closeranks.collectives.faults.attempts import Attempt
    from closeranks.collectives.pairs.sparse_vector import SparseVector
    from closeranks.collectives.replicated.state_leaves import State
    from closeranks.collectives.replicated.synchronization import Digest
    from closeranks.collectives.selection.explanation import Explanation
    from closeranks.comms.topology.topology import Topology


class Communicator(Blocking, Nonblocking, Prepared, Deriving, Objects):
    """A communicator made by `closeranks.init`, or derived from one.

    It takes the place of ``MPI.COMM_WORLD`` anywhere: windows, files, h5py,
    petsc4py.  Leave it by the ``with`` block, or `close` it.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        The handle to take over; `adopt` makes the object work.
    """

    CALLS_IN_CHILD = frozenset({"abandon", "close", "Disconnect", "Free", "Get_rank", "Get_size"})

    @property
    def hierarchy(self) -> Topology:
        """Where the ranks sit."""
        return self._membership.topology

    @property
    def epoch(self) -> int:
        """Number of recoveries so far."""
        return self._membership.family.world.epoch

    @property
    def threaded(self) -> bool:
        """Whether what nobody waits for goes on: MPI_THREAD_MULTIPLE on all ranks."""
        return self._membership.family.threaded

    @property
    def checks(self) -> bool:
        """Whether what ranks pass is compared, see `closeranks.init`."""
        return self._membership.family.check

    @property
    def alive(self) -> tuple[int, ...]:
        """Seats of the members, ascending."""
        return tuple(sorted(self._membership.seats))

    @property
    def seat(self) -> int:
        """Seat of this process: its rank in the first world."""
        return self._membership.seats[self._service.rank]

    @property
    def joined(self) -> bool:
        """Whether this process entered later than the others."""
        return self._membership.family.joined

    def incarnation(self, seat: int) -> int:
        """Tell how many newcomers have taken a seat so far.

        Local; the same on all members.

        Parameters
        ----------
        seat : int
            A rank of the first world.

        Returns
        -------
        int
            0 for a process that was there from the start.

        Raises
        ------
        UsageError
            If there was no such rank.
        """
        return self._membership.incarnation(seat)

    def explain(
        self,
        operation: str,
        nbytes: int | None = None,
        dtype: DTypeLike = "float32",
        *,
        op: MPI.Op | Mean | None = None,
        nnz: int | None = None,
        length: int | None = None,
        width: int = 1,
    ) -> Explanation:
        """Say which algorithm a call would use, and why.

        Local.

        Parameters
        ----------
        operation : str
            For instance ``"allreduce"``.
        nbytes : int
            Bytes of the vector, or of one rank's block; not of "allreduce_sparse".
        dtype : dtype
            Element, for operations that reduce.
        op : MPI.Op or Mean, optional
            The reduction; default: one whose operands may change places.
        nnz, length, width : int
            Of "allreduce_sparse", as those of a `SparseVector`: entries of a rank, on
            average over the ranks, entries of the vector, and values of an entry.

        Returns
        -------
        Explanation
            Printable; ``.algorithm``, ``.source``, ``.predicted_s``,
            ``.bytes_per_level`` and ``.candidates``.

        Raises
        ------
        UsageError
            If there is no such operation, size, type or op (local).
        """
        element = argument.element_type("explain", dtype)
        commutes = True
        if op is not None:
            remedy = "give an MPI.Op, or closeranks.MEAN"
            argument.instance("explain", "op", op, (MPI.Op, Mean), remedy)
            commutes = is_commutative(op)
        is_sparse = isinstance(operation, str) and operation == SPARSE_SUM
        if is_sparse and nbytes is None:
            found: Explanation = late("explain")(self, nnz, length, width, element)
            return found
        if is_sparse or (nnz, length, width) != (None, None, 1):
            wrong = "nbytes" if is_sparse else "nnz, length or width"
            remedy = f"pass nnz=, length=, width= for {SPARSE_SUM}, nbytes for others"
            raise UsageError("explain", f"{wrong} of {operation}", remedy)
        return foretell(self._service, operation, nbytes, element, commutes=commutes)

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
        family = self._membership.family
        refused: Error | None = None
        try:
            if compression is not None:
                raise Unavailable("compression in flight", "leave compression out")
            wanted = call_options.read(family, algorithm, timeout_s, wire)
            said = (
                algorithm if isinstance(algorithm, str) else dict(sorted(wanted.algorithms.items()))
            )
            words = f"algorithm {said!r}, timeout_s {timeout_s}, wire {wanted.wire}"
        except (UsageError, Unavailable) as wrong:
            refused, words = wrong, f"what is refused: {wrong}"
        with self._membership.together("using"):
            agree_equal(self._service.careful, "using", words)
            if refused is not None:
                raise refused
            if timeout_s is not None:
                self._service.world.arm()
        inner = wanted.within(call_options.active(family))
        token = call_options.ACTIVE.set((*call_options.ACTIVE.get(), inner))
        family.override(+1)
        try:
            yield
        finally:
            family.override(-1)
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
        with self._membership.together("empty"):
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
        with self._membership.together("bucketed"):
            made: Buckets = late("bucketed")(self, parameters, bucket_bytes, op)
            return made

    def Allreduce_sparse(
        self, vector: SparseVector, op: MPI.Op | Mean = MPI.SUM, *, algorithm: str = "auto"
    ) -> SparseVector:
        """Combine sparse vectors of all ranks; every rank gets the same bits.

        Collective.  An entry is combined over the ranks that have it.

        Parameters
        ----------
        vector : SparseVector
            Of any number of entries on each rank, also none; on the host or a device.
        op : MPI.SUM, PROD, MIN, MAX or cr.MEAN
            The reduction.  MEAN divides sums by the number of all ranks.
        algorithm : {"auto", "doubling", "split", "dense"}
            Which algorithm.  On a deterministic communicator "auto" is "split", which
            adds operands in rank order; the others add in another order that is fixed.

        Returns
        -------
        SparseVector
            Its indices ascend, each once.  An index is there if any rank has it,
            also if its sum is 0.  Indices and values lie where those of this rank's
            vector lie.

        Raises
        ------
        Disagreement
            On every rank, if lengths, widths, types, ops or algorithms differ.
        Unavailable
            On every rank, if a rank has no room for a whole vector of "dense".
        UsageError
            If this rank's arguments are wrong; the others get `Disagreement`.
        """
        found: SparseVector = late("Allreduce_sparse")(self, vector, op, algorithm)
        return found

    def attempts(
        self, limit: int | None = None, min_ranks: int = 1, *, restore: bool = True
    ) -> Iterator[Attempt]:
        """Repeat a body until it has ended well on all members.

        Collective over the members of the first communicator, whichever of the
        family is asked; one agreement an attempt, some microseconds.  Use as::

            for attempt in comm.attempts():
                with attempt:
                    comm.Allreduce(gradient, total)

        Leaving the ``with`` block votes.  `PeerError`, and MPI errors that speak of
        dead ranks or revoked communicators, vote for another attempt: the members
        that are left go on in a new world.  Any other exception is raised here, and
        `PeerLost` with its ``cause`` on the others.

        After an attempt that has failed, send buffers are as they were, receive
        buffers undefined; those of calls in place are as they were when the attempt
        first used them.  Leaving such an attempt by ``break`` or ``return`` does not
        repeat it: the next call raises `Revoked`, for its results were never agreed.

        Parameters
        ----------
        limit : int, optional
            How many attempts at most.
        min_ranks : int
            With fewer members left, every one of them raises `PeerLost`.
        restore : bool
            Whether buffers of calls in place are copied before their first use.

        Yields
        ------
        Attempt
            To be entered once; ``.number``, ``.world``, ``.lost``.

        Raises
        ------
        UsageError
            Inside of another attempt; if a request is unfinished at the end.
        PeerLost
            If another member left by an exception; if ``min_ranks`` are not left;
            what ended the last attempt, if ``limit`` were not enough or the
            communicator was opened with ``on_failure="raise"``.
        Revoked
            If an attempt before failed and was left, or what it uses is of no use for
            good, or ``limit`` or ten in a row have failed though nobody was lost.
        """
        recovery = self._membership.family.recovery
        return recovery.attempts(limit, min_ranks, restores=restore)

    @property
    def faults(self) -> Injection:
        """What goes wrong on purpose on this rank, see `Injection.fail_at`.

        Raises
        ------
        UsageError
            If the communicator was not opened with ``faults=True`` (local).
        """
        return self._membership.faults

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the whole job, on all ranks; does not return.

        Local.  Under ``closeranks run --faults`` the launcher does it, for MPI_Abort
        ends nobody there.

        Parameters
        ----------
        errorcode : int
            Exit status of the job; the default, 0, is mpi4py's.
        """
        ulfm.abort(errorcode)
        super().Abort(errorcode)

    def keep(self, *arrays: NDArray[Any]) -> None:
        """Let the attempt that is under way, if there is one, restore arrays if it fails.

        Local; for what is about to be overwritten by other means than a call in place.

        Parameters
        ----------
        *arrays : ndarray
            Copied, once an attempt.
        """
        self._membership.keep(arrays)

    def digest(self, state: State) -> Digest:
        """Compare what all ranks hold alike.

        Collective; one gathering of digests where all is well.  Every byte is read.

        Parameters
        ----------
        state : dict, list or tuple
            A nest of them, of arrays, numbers, strings and bytes.

        Returns
        -------
        Digest
            ``.value`` of what most ranks have, ``.differing``, ``.unhealthy`` (NaN,
            Inf); readable as text.

        Raises
        ------
        UsageError
            If something else is in the ``state`` of any rank, or two leaves of it
            have the same path.
        """
        return synchronization.digest(self._membership, state)

    def synchronize(self, state: State) -> State:
        """Bring every rank to the state that most of them have, bit for bit.

        Collective; the first statement of an attempt.  A newcomer has no say and gets
        the state of the others; of groups as large the one with the longest-lived
        process is right.  Who differs gets what differs from the nearest rank that is
        right.  Members that are no newcomers and differ, and numbers that are not
        finite, are warned of by rank and path.

        Parameters
        ----------
        state : dict, list or tuple
            A nest of them, of arrays, numbers, strings and bytes, alike on all ranks.
            Dicts, lists and arrays of the same kind are changed in place.

        Returns
        -------
        dict, list or tuple
            The state: ``state`` itself unless it is a tuple.

        Raises
        ------
        UsageError
            If something else is in the ``state`` of any rank, or two leaves of it
            have the same path.
        Corrupted
            If what came is not what was sent.
        """
        return synchronization.synchronize(self._membership, state)

    def explained(self, operation: str, error: MPI.Exception) -> Exception:
        """Give what is to be raised for an error of the library.

        Local.  If it speaks of dead ranks, or of a communicator that was revoked,
        the family is given up, as if a call of its own had met it.

        Parameters
        ----------
        operation : str
            The call.
        error : MPI.Exception
            What the library raised, here or on a communicator of the same ranks.

        Returns
        -------
        Exception
            `PeerLost`, `Revoked`, or the error itself if it speaks of something else.
        """
        return self._service.explained(operation, error)

    def refuse_given_up(self, operation: str) -> None:
        """Raise `Revoked` if a rank has given the family up.

        Local; for who waits for the ranks beside calls of this communicator.

        Parameters
        ----------
        operation : str
            What would be waited for.
        """
        self._membership.refuse_given_up(operation)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self == MPI.COMM_NULL and not forked_child.is_child():
            return
        if kind is None:
            self._closing.finish(self)
        else:
            self._closing.leave_block(self, error)

    def close(self) -> None:
        """Free this communicator; the first of a family frees the whole family.

        Collective, harmless twice, and in a child that was forked.  What is in
        flight ends first; who has the request may still wait for it.

        Raises
        ------
        PeerLate
            If other ranks do not come within the deadline of calls, or 30 s if that is
            longer; without one, within an hour, or 5 minutes on several nodes in a job
            that ends with its first dead rank.
        PeerLost, Revoked
            If ranks have died, or others have given up, see `abandon`.  Once, and at
            the end of the block for good, if an attempt has failed and was left.
        UsageError
            Of the first one, inside of an attempt (local).
        """
        if not forked_child.is_child() and self != MPI.COMM_NULL:
            self._closing.close(self)

    Free = Disconnect = close

    def abandon(self) -> None:
        """Give the whole family up after an error; nobody is waited for.

        Local, harmless twice, and in a child that was forked.
        """
        if forked_child.is_child():
            ulfm.leave_child(1)
        elif self != MPI.COMM_NULL:
            self._closing.leave(self)
