"""Lower-case calls, which end on all ranks when one cannot give its object.

What a rank passes that cannot be pickled, or combined, is told in the place of
its object, see `closeranks.collectives.dispatch.object_refusal`: with mpi4py
the others wait for ever.

They end when ranks die, too.  mpi4py reduces objects on a duplicate of the
communicator, which it shows nobody, so nobody can revoke it: who waits there
for a rank that has given up waits for ever.  And the library's own collectives
may hang with long messages, see `closeranks.comms.mpi.ulfm.BRIEF_BYTES`.
Where ranks may die, pickled objects go by calls of the communicator itself,
and are reduced here, in the order of the ranks, on all of them alike.

The library sometimes ends a call well although a rank has died and nothing has
come.  Nothing is pickled as nothing, nor begins with a zero: so this is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.arguments.reduction_arguments import read_root
from closeranks.collectives.communicator.adoption import Adopted
from closeranks.collectives.dispatch.object_refusal import Binary, Combining, ObjectParts
from closeranks.collectives.selection.call_options import unforced
from closeranks.comms.exit import signal_handlers
from closeranks.comms.mpi import messages, ulfm
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from closeranks.comms.liveness.call_counter import PendingCalls

_CAREFUL: Final = ulfm.is_on()


class Objects(Adopted):
    """Collectives of Python objects, as mpi4py's."""

    def barrier(self) -> None:
        """Wait for all ranks.  Collective."""
        if self._is_plain("barrier"):
            with self._inside:
                super().barrier()
        else:
            self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Give an object of ``root`` to all.

        Collective.

        Parameters
        ----------
        obj : object
            Pickled there; of others it does not count.
        root : int
            Whose.

        Returns
        -------
        object
            The same on all ranks.

        Raises
        ------
        UsageError
            On all ranks, if the object of ``root`` cannot be pickled; that one gets
            what pickle has raised.
        MPI.Exception
            On all ranks, if there is no such root; caused by a `UsageError`.
        """
        whom, parts = self._moving("bcast", root)
        with self._turn(), unforced(self._service.family):
            is_root = self.rank == root
            data, own = parts.pickled(obj) if is_root else (_NOTHING, 0)
            length = np.array([own])
            whom.Bcast(length, root)
            self._check("bcast", length)
            nbytes = abs(int(length[0]))
            data = data if is_root else np.zeros(nbytes, np.uint8)
            (self if messages.is_long(nbytes) else whom).Bcast(data, root)
            self._check("bcast", data[:1])
            found = obj if is_root else parts.unpickled(data, int(length[0]))
        return parts.checked(found)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Give an object of every rank to ``root``, None to others.

        Collective; objects are pickled.

        Raises
        ------
        UsageError
            On ``root``, if an object cannot be pickled: its rank gets what pickle has
            raised.
        MPI.Exception
            As of `bcast`.
        """
        whom, parts = self._moving("gather", root)
        with self._turn(), unforced(self._service.family):
            (data, length), lengths = parts.pickled(sendobj), np.zeros(self.size, np.int64)
            is_root = self.rank == root
            whom.Allgather(np.array([length]), lengths)  # all know whether it is long in all
            self._check("gather", lengths)
            nbytes = int(abs(lengths).sum())
            found = np.zeros(nbytes if is_root else 0, np.uint8)
            taken = _spec(found, lengths) if is_root else None
            self._vector(whom, "Gatherv", nbytes, data, taken, root)
            every = self._parted("gather", parts, found, lengths) if is_root else None
        return parts.checked(every)

    def scatter(self, sendobj: Iterable[Any] | None, root: int = 0) -> Any:
        """Give each rank its object of a list of ``root``.

        Collective; objects are pickled.

        Raises
        ------
        UsageError
            On all ranks, if ``root`` has not as many objects as there are ranks, or
            one cannot be pickled: on ``root`` that is what pickle has raised.
        MPI.Exception
            As of `bcast`.
        """
        whom, parts = self._moving("scatter", root)
        with self._turn(), unforced(self._service.family):
            is_root, own = self.rank == root, np.zeros(2, np.int64)
            given, lengths = parts.all_pickled(sendobj, self.size) if is_root else (_NOTHING, None)
            whom.Scatter(None if lengths is None else _told(given, lengths), own, root)
            self._check("scatter", own)
            data = np.zeros(abs(int(own[0])), np.uint8)
            sent = None if lengths is None else _spec(given, lengths)
            self._vector(whom, "Scatterv", int(own[1]), sent, data, root)
            self._check("scatter", data[:1])
            found = parts.unpickled(data, int(own[0]))
        return parts.checked(found)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object of every rank to all.

        Collective; objects are pickled.

        Raises
        ------
        UsageError
            On all ranks, if an object cannot be pickled: its rank gets what pickle
            has raised.
        """
        whom, parts = self._moving("allgather")
        with self._turn(), unforced(self._service.family):
            (data, length), lengths = parts.pickled(sendobj), np.zeros(self.size, np.int64)
            whom.Allgather(np.array([length]), lengths)
            self._check("allgather", lengths)
            nbytes = int(abs(lengths).sum())
            found = np.zeros(nbytes, np.uint8)
            (self if messages.is_long(nbytes) else whom).Allgatherv(data, _spec(found, lengths))
            every = self._parted("allgather", parts, found, lengths)
        return parts.checked(every)

    def alltoall(self, sendobj: Iterable[Any]) -> list[Any]:
        """Give every rank an object of each.

        Collective; objects are pickled.

        Raises
        ------
        UsageError
            On all ranks, if one has not as many objects as there are ranks, or one
            cannot be pickled: its rank gets what pickle has raised.
        """
        whom, parts = self._moving("alltoall")
        with self._turn(), unforced(self._service.family):
            given, sizes = parts.all_pickled(sendobj, self.size)
            told = np.zeros((self.size, 2), np.int64)
            whom.Alltoall(_told(given, sizes), told)
            self._check("alltoall", told)
            lengths, most = told[:, 0], int(told[:, 1].max()) * self.size
            found = np.zeros(int(abs(lengths).sum()), np.uint8)
            sent, taken = _spec(given, sizes), _spec(found, lengths)
            self._vector(whom, "Alltoallv", most, sent, taken)
            every = self._parted("alltoall", parts, found, lengths)
        return parts.checked(every)

    def allreduce(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce an object of every rank; all get the result.

        Collective.

        Parameters
        ----------
        sendobj : object
            Of this rank; pickled.
        op : MPI.Op, MEAN or callable
            Of two objects; associative.  `MEAN` is the sum (``+``) of numbers or
            arrays, divided by how many were added.

        Returns
        -------
        object
            The same on all ranks.

        Raises
        ------
        UsageError
            Before anything is sent, if ``op`` cannot be called; on all ranks that
            would get the result, if ``op`` or pickle has raised on another one, which
            gets that itself.
        """
        combine = self._combining("allreduce", op)
        if _CAREFUL:
            return combine.result(reduce(combine, self.allgather(sendobj)))
        with self._in_one_piece():
            found = super().allreduce(combine.given(sendobj), combine)
        return combine.result(found)

    def reduce(self, sendobj: Any, op: Binary = MPI.SUM, root: int = 0) -> Any:
        """Reduce an object of every rank; ``root`` gets the result.

        Collective; as `allreduce` otherwise.
        """
        combine = self._combining("reduce", op)
        with self._refusing("reduce"):
            self._check_root("reduce", root)
        if _CAREFUL:
            given = self.gather(sendobj, root)
            return combine.result(None if given is None else reduce(combine, given))
        with self._in_one_piece():
            found = super().reduce(combine.given(sendobj), combine, root)
        return combine.result(found)

    def scan(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce the objects of the ranks up to this one.

        Collective; as `allreduce` otherwise.
        """
        combine = self._combining("scan", op)
        if _CAREFUL:
            return combine.result(self._partial(sendobj, combine, self.rank + 1))
        with self._in_one_piece():
            found = super().scan(combine.given(sendobj), combine)
        return combine.result(found)

    def exscan(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce the objects of the ranks before this one; None on the first.

        Collective; as `allreduce` otherwise.
        """
        combine = self._combining("exscan", op)
        if _CAREFUL:
            return combine.result(self._partial(sendobj, combine, self.rank))
        with self._in_one_piece():
            found = super().exscan(combine.given(sendobj), combine)
        return combine.result(found)

    def _is_plain(self, operation: str) -> bool:
        """Tell whether a call is mpi4py's own, and count it; raise if there are no more."""
        if not _CAREFUL:
            self._service.guard.refuse_late(operation)
            self._service.calls.begin()
        return not _CAREFUL

    @contextmanager
    def _refusing(self, operation: str) -> Iterator[None]:
        """Tell the others of a call that this rank refuses: they may be in it."""
        try:
            yield
        except (UsageError, MPI.Exception) as error:
            if not _CAREFUL:
                self._service.refused(self._service.calls.begun - 1, operation, error)
            raise

    def _combining(self, operation: str, op: Binary) -> Combining:
        """Give what combines objects; nothing is sent where it is refused."""
        self._is_plain(operation)
        parts = {"scan": self.rank + 1, "exscan": self.rank}.get(operation, self.size)
        with self._refusing(operation):
            return Combining(operation, op, self.rank, parts)

    def _moving(self, operation: str, root: int = 0) -> tuple[MPI.Intracomm, ObjectParts]:
        """Give who moves bytes, and this rank's parts; nothing is sent for a wrong root."""
        whom = self._service.plain if self._is_plain(operation) else self
        with self._refusing(operation):
            self._check_root(operation, root)
        return whom, ObjectParts(operation, self.rank)

    def _check_root(self, operation: str, root: int) -> None:
        """Raise what mpi4py raises if there is no such root, caused by the values."""
        try:
            read_root(operation, root, self.size)
        except UsageError as problem:
            if not hasattr(root, "__index__"):
                raise
            raise MPI.Exception(MPI.ERR_ROOT) from problem

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let no other thread come between the lengths and the bytes of a call."""
        lock: RLock = self.__dict__.setdefault("_lock", RLock())
        with lock, self._in_one_piece():
            yield

    @contextmanager
    def _in_one_piece(self) -> Iterator[None]:
        """Let signal handlers wait for the last message of a call, as in MPI's own calls.

        A call is several messages.  If a handler raised between two of them, the
        next call of this rank would meet this call of the others.
        """
        with signal_handlers.DeferredHandlers(), self._inside:
            if not _CAREFUL:
                signal_handlers.defer_handlers()
            yield

    @property
    def _inside(self) -> PendingCalls:
        """Where calls of the library are noted that nothing ends."""
        return self._service.family.notices.inside

    def _vector(self, whom: MPI.Intracomm, method: str, most: int, *arguments: Any) -> None:
        """Move blocks whose sizes no rank knows in full: long ones by a plan."""
        if messages.is_long(most):
            getattr(self, method)(*arguments, algorithm="linear")
        else:
            getattr(whom, method)(*arguments)

    def _partial(self, sendobj: Any, combine: Combining, ranks: int) -> Any:
        """Combine the objects of the first ranks; None of none."""
        given = self.allgather(sendobj)[:ranks]
        return reduce(combine, given) if given else None

    def _parted(
        self,
        operation: str,
        parts: ObjectParts,
        data: NDArray[np.uint8],
        lengths: NDArray[np.int64],
    ) -> list[Any]:
        """Take objects apart that lie one after the other."""
        ends = np.cumsum(abs(lengths))
        self._check(operation, data[ends - abs(lengths)])
        return [parts.unpickled(data[stop - abs(length) : stop], length)
                for stop, length in zip(ends.tolist(), lengths.tolist(), strict=True)]  # fmt: skip

    def _check(self, operation: str, arrived: NDArray[Any]) -> None:
        """Raise, as the library should have, if one of these has not come."""
        if not arrived.all():
            raise self._service.explained(operation, MPI.Exception(MPI.ERR_PROC_FAILED))


_NOTHING: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)


def _told(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pair the length of each part with that of all."""
    return np.stack([lengths, np.full_like(lengths, data.nbytes)], axis=1)


def _spec(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> list[Any]:
    """Describe parts, one after the other, to MPI."""
    counts = abs(lengths)
    return [data, (counts, np.cumsum(counts) - counts), MPI.BYTE]
