"""Lower-case reductions that end when ranks die.

mpi4py makes its own on a duplicate of the communicator, which it shows nobody,
so nobody can revoke it: who waits there for a rank that has given up waits for
ever.  Where ranks may die, objects are gathered on the communicator itself and
reduced here, in the order of the ranks, on all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import Any, Final

from mpi4py import MPI

from closeranks.comms import ulfm

#: Takes two objects; operations of MPI do, too.
Binary = MPI.Op | Callable[[Any, Any], Any]
_CAREFUL: Final = ulfm.is_on()


class Objects(MPI.Intracomm):
    """Reductions of Python objects, as mpi4py's."""

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
            return super().allreduce(sendobj, op)
        return reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Binary = MPI.SUM, root: int = 0) -> Any:
        """Reduce an object of every rank; ``root`` gets the result.

        Collective; as `allreduce` otherwise.
        """
        if not _CAREFUL:
            return super().reduce(sendobj, op, root)
        given = self.gather(sendobj, root)
        return None if given is None else reduce(op, given)

    def scan(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce the objects of the ranks up to this one.

        Collective; as `allreduce` otherwise.
        """
        if not _CAREFUL:
            return super().scan(sendobj, op)
        return self._partial(sendobj, op)[self.rank]

    def exscan(self, sendobj: Any, op: Binary = MPI.SUM) -> Any:
        """Reduce the objects of the ranks before this one; None on the first.

        Collective; as `allreduce` otherwise.
        """
        if not _CAREFUL:
            return super().exscan(sendobj, op)
        partial = self._partial(sendobj, op)
        return partial[self.rank - 1] if self.rank else None

    def _partial(self, sendobj: Any, op: Binary) -> list[Any]:
        return list(accumulate(self.allgather(sendobj), op))
