"""The short way into node memory: a blocking call, one kernel, nothing between.

For calls that are known to be served by a kernel alone. The order of a node's
segments is that of the calls, so this way is open only while no leaf waits for
its turn; a rank that takes the engine's way meanwhile meets the others all the
same, since both ways run the same kernel and count the same sequence number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.demand import lay_out
from closeranks.collectives.engine import engine
from closeranks.collectives.problem import REDUCING
from closeranks.collectives.shared_run import combiner_for, kernel_for
from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from closeranks.collectives.demand import Demand
    from closeranks.collectives.world import World

#: Operations that have a short way, and the argument whose bytes it is found by.
SIZED = {"allreduce": 1, "allgather": 0, "alltoall": 0, "bcast": 0, "reduce_scatter_block": 0}
OPERATIONS = SIZED.keys()
_address = MPI.Get_address


class Near:
    """Calls of one operation, size, type, op and root that a kernel serves.

    Local to make.

    Parameters
    ----------
    world : World
        Whose node memory is used; all its ranks share one node.
    demand : Demand
        A call of that kind.

    Attributes
    ----------
    key : int
        Bytes of the buffer by which a communicator finds it, see `quick_size`.
    root : int
        The root, where there is one.
    calls : int
        How many arrays went through `run`.
    """

    __slots__ = (
        "_dtype", "_frame", "_given", "_kernel", "_memory", "_nbytes", "_op", "_operation",
        "_reduces", "_state", "_taken", "_world", "calls", "key",
        "root",
    )  # fmt: skip

    def __init__(self, world: World, demand: Demand) -> None:
        self._world, self._memory = world, world.node_memory
        self._operation = demand.operation
        self._op, self._dtype, self._nbytes = demand.op, demand.dtype, demand.nbytes
        self._reduces = demand.operation in REDUCING
        blocks = demand.nbytes * demand.size
        wide = ("alltoall", "reduce_scatter_block"), ("alltoall", "allgather")
        self._given, self._taken = (
            blocks if demand.operation in names else demand.nbytes for names in wide
        )
        self.key = self._taken if demand.operation == "allreduce" else self._given
        combiner = combiner_for(demand.operation, demand.reducer, demand.dtype)
        self._frame = self._memory.frame(combiner, demand.dtype.itemsize, demand.root)
        self._state = self._memory.state
        self._kernel = kernel_for(demand.operation, demand.nbytes)
        self.root, self.calls = demand.root, 0

    def takes(self, sendbuf: Any, other: Any, *rest: Any) -> bool:
        """Tell whether a call is of this kind and its arrays can be used as they are.

        Parameters
        ----------
        sendbuf, other, *rest
            The call's arguments, with their defaults.

        Raises
        ------
        AttributeError
            If they are no arrays.
        """
        if self._operation == "bcast":
            return bool(other == self.root) and self._moves(sendbuf, sendbuf)
        if self._reduces and not (
            rest[0] is self._op and other.dtype is self._dtype and sendbuf.dtype is self._dtype
        ):
            return False
        return self._moves(sendbuf, other)

    def _moves(self, sendbuf: Any, recvbuf: Any) -> bool:
        """Whether the arrays have the right sizes, and no gaps."""
        return (
            sendbuf.nbytes == self._given
            and recvbuf.nbytes == self._taken
            and recvbuf.flags.carray
            and sendbuf.flags.c_contiguous
            and not self._memory.turns
        )

    def run(self, sendbuf: Any, other: Any) -> None:
        """Run the kernel on a call's arrays; returns when the result is there."""
        given = _address(sendbuf)
        self._run(given, given if self._operation == "bcast" else _address(other))
        self.calls += 1

    def serve(self, demand: Demand) -> None:
        """Run the kernel for a call whose arguments may be of any form."""
        if self._as_they_are(demand):
            sendbuf, recvbuf = demand.arguments[:2]
            return self._run(_address(sendbuf), _address(recvbuf))
        memory = lay_out(demand)
        given, taken = (
            0 if part is None else part.ctypes.data for part in (memory.input, memory.output)
        )
        self._run(given, taken)
        if memory.finish is not None:
            memory.finish()
        return None

    def _as_they_are(self, demand: Demand) -> bool:
        """Whether the arguments are arrays that the kernel can use."""
        if self._operation == "bcast":
            return False
        try:
            return self.takes(*demand.arguments)
        except AttributeError:
            return False

    def _run(self, given: int, taken: int) -> None:
        nbytes = self._nbytes
        self._world.sequence()
        if not self._kernel(self._frame, self._state, given, taken, nbytes):
            wait(
                lambda: self._kernel(self._frame, self._state, given, taken, nbytes),
                progress=engine().progress,
                abort=lambda: self._world.check(self._operation),
            )


def is_near(world: World, demand: Demand) -> bool:
    """Tell whether calls like this one may take the short way.  Local.

    Parameters
    ----------
    world : World
        Of the communicator.
    demand : Demand
        A call that goes to ``shared``.

    Returns
    -------
    bool
        Only where a kernel runs it alone.
    """
    if demand.operation not in OPERATIONS or not demand.nbytes:
        return False
    if not 1 < world.size == world.node.size or world.node_memory.turns:
        return False
    if demand.operation not in REDUCING:
        return True
    return combiner_for(demand.operation, demand.reducer, demand.dtype) is not None
