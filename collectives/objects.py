"""Lower-case calls that end when ranks die.

mpi4py reduces objects on a duplicate of the communicator, which it shows
nobody, so nobody can revoke it: who waits there for a rank that has given up
waits for ever.  And the library's own collectives may hang with long messages,
see `closeranks.comms.ulfm.BRIEF_BYTES`.  Where ranks may die, pickled objects
go by calls of the communicator itself, and are reduced here, in the order of
the ranks, on all of them alike.

The library sometimes ends a call well although a rank has died and nothing has
come.  Nothing is pickled as nothing, nor begins with a zero: so this is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.context import unforced
from closeranks.comms import ulfm

if TYPE_CHECKING:
    from closeranks.collectives.family import Family
    from closeranks.collectives.service import Service

_T = TypeVar("_T")
#: Takes two objects; operations of MPI do, too.
Binary = MPI.Op | Callable[[Any, Any], Any]
_CAREFUL: Final = ulfm.is_on()


class Objects(MPI.Intracomm):
    """Collectives of Python objects, as mpi4py's."""

    _family: Family
    _service: Service
    explained: Callable[[str, MPI.Exception], Exception]

    def barrier(self) -> None:
        """Wait for all ranks.  Collective."""
        if not _CAREFUL:
            self._whole("barrier", super().barrier)
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
        """
        if not _CAREFUL:
            return self._whole("bcast", super().bcast, obj, root)
        data = _pickled(obj) if self.rank == root else _NOTHING
        length = np.array([data.size])
        with unforced(self._family):
            self.Bcast(length, root)
            self._check("bcast", length)
            data = data if self.rank == root else np.zeros(int(length[0]), np.uint8)
            self.Bcast(data, root)
            self._check("bcast", data[:1])
        return obj if self.rank == root else _unpickled(data)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Give an object of every rank to ``root``, None to others.

        Collective; objects are pickled.
        """
        if not _CAREFUL:
            return self._whole("gather", super().gather, sendobj, root)
        data, counts = _pickled(sendobj), np.zeros(self.size, np.int64)
        is_root = self.rank == root
        with unforced(self._family):
            self.Gather(np.array([data.size]), counts if is_root else None, root)
            if is_root:
                self._check("gather", counts)
            found = np.zeros(int(counts.sum()), np.uint8)
            self.Gatherv(data, _spec(found, counts) if is_root else None, root)
        return self._parted("gather", found, counts) if is_root else None

    def scatter(self, sendobj: Iterable[Any] | None, root: int = 0) -> Any:
        """Give each rank its object of a list of ``root``.

        Collective; objects are pickled.

        Raises
        ------
        ValueError
            On ``root`` alone, if it has not as many as there are ranks.
        """
        if not _CAREFUL:
            return self._whole("scatter", super().scatter, sendobj, root)
        every = self._for_all(sendobj) if self.rank == root else []
        counts, own = np.array([one.size for one in every], np.int64), np.zeros(1, np.int64)
        with unforced(self._family):
            self.Scatter(counts if self.rank == root else None, own, root)
            self._check("scatter", own)
            data = np.zeros(int(own[0]), np.uint8)
            whole = _spec(np.concatenate(every), counts) if self.rank == root else None
            self.Scatterv(whole, data, root)
            self._check("scatter", data[:1])
        return _unpickled(data)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Give an object of every rank to all.

        Collective; objects are pickled.
        """
        if not _CAREFUL:
            return self._whole("allgather", super().allgather, sendobj)
        data, counts = _pickled(sendobj), np.zeros(self.size, np.int64)
        with unforced(self._family):
            self.Allgather(np.array([data.size]), counts)
            self._check("allgather", counts)
            found = np.zeros(int(counts.sum()), np.uint8)
            self.Allgatherv(data, _spec(found, counts))
        return self._parted("allgather", found, counts)

    def alltoall(self, sendobj: Iterable[Any]) -> list[Any]:
        """Give every rank an object of each.

        Collective; objects are pickled.

        Raises
        ------
        ValueError
            On this rank alone, if it has not as many as there are ranks.
        """
        if not _CAREFUL:
            return self._whole("alltoall", super().alltoall, sendobj)
        every = self._for_all(sendobj)
        sizes, counts = np.array([one.size for one in every]), np.zeros(self.size, np.int64)
        with unforced(self._family):
            self.Alltoall(sizes, counts)
            self._check("alltoall", counts)
            found = np.zeros(int(counts.sum()), np.uint8)
            self.Alltoallv(_spec(np.concatenate(every), sizes), _spec(found, counts))
        return self._parted("alltoall", found, counts)

    def allreduce(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce an object of every rank; all get the result.

        Collective.

        Parameters
        ----------
        sendobj : object
            Of this rank; pickled.
        op : MPI.Op or callable
            Of two objects; associative.

        Returns
        -------
        object
            The same on all ranks.
        """
        if not _CAREFUL:
            return self._whole("allreduce", super().allreduce, sendobj, op)
        return reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Binary = MPI.SUM, root: int = 0) -> Any:
        """Reduce an object of every rank; ``root`` gets the result.

        Collective; as `allreduce` otherwise.
        """
        if not _CAREFUL:
            return self._whole("reduce", super().reduce, sendobj, op, root)
        given = self.gather(sendobj, root)
        return None if given is None else reduce(op, given)

    def scan(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce the objects of the ranks up to this one.

        Collective; as `allreduce` otherwise.
        """
        if not _CAREFUL:
            return self._whole("scan", super().scan, sendobj, op)
        return self._partial(sendobj, op)[self.rank]

    def exscan(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce the objects of the ranks before this one; None on the first.

        Collective; as `allreduce` otherwise.
        """
        if not _CAREFUL:
            return self._whole("exscan", super().exscan, sendobj, op)
        partial = self._partial(sendobj, op)
        return partial[self.rank - 1] if self.rank else None

    def _whole(self, operation: str, call: Callable[..., _T], *arguments: Any) -> _T:
        """Make a call that is mpi4py's own, unless there are no more.

        What goes wrong on one rank alone, say in an op, keeps the others waiting: so
        they hear of it.
        """
        service = self._service
        service.gate.refuse_late(operation)
        number = service.calls.begin()
        try:
            with service.family.notices.inside:
                return call(*arguments)
        except MPI.Exception:
            raise
        except Exception as error:
            service.refused(number, operation, error)
            raise

    def _partial(self, sendobj: Any, op: Binary) -> list[Any]:
        return list(accumulate(self.allgather(sendobj), op))

    def _for_all(self, objects: Iterable[Any] | None) -> list[NDArray[np.uint8]]:
        """Pickle an object for each rank."""
        every = [_pickled(one) for one in (() if objects is None else objects)]
        if len(every) != self.size:
            raise ValueError(f"{len(every)} objects for {self.size} ranks")
        return every

    def _parted(
        self, operation: str, data: NDArray[np.uint8], counts: NDArray[np.int64]
    ) -> list[Any]:
        """Take objects apart that lie one after the other."""
        ends = np.cumsum(counts)
        self._check(operation, data[ends - counts])
        return [_unpickled(data[stop - count : stop])
                for stop, count in zip(ends.tolist(), counts.tolist(), strict=True)]  # fmt: skip

    def _check(self, operation: str, arrived: NDArray[Any]) -> None:
        """Raise, as the library should have, if one of these has not come."""
        if not arrived.all():
            raise self.explained(operation, MPI.Exception(MPI.ERR_PROC_FAILED))


_NOTHING: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)


def _pickled(one: Any) -> NDArray[np.uint8]:
    return np.frombuffer(MPI.pickle.dumps(one), np.uint8)


def _unpickled(data: NDArray[np.uint8]) -> Any:
    return MPI.pickle.loads(data)


def _spec(data: NDArray[np.uint8], counts: NDArray[np.int64]) -> list[Any]:
    """Describe parts, one after the other, to MPI."""
    return [data, (counts, np.cumsum(counts) - counts), MPI.BYTE]
