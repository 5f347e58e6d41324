"""The short way into node memory: a blocking call, one kernel, nothing between.

For calls that are known to be served by a kernel alone. The order of a node's
segments is that of the calls, so this way is open only while no leaf waits for
its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from closeranks.collectives.demand import lay_out
from closeranks.collectives.engine import engine
from closeranks.collectives.shared_run import combiner_for, kernel_for
from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from closeranks.collectives.demand import Demand
    from closeranks.collectives.world import World

_address = MPI.Get_address


class Near:
    """Calls of one operation, size, type and op that a kernel serves.

    Local to make; of blocking all-reduces of whole arrays.

    Parameters
    ----------
    world : World
        Whose node memory is used; all its ranks share one node.
    demand : Demand
        A call of that kind.

    Attributes
    ----------
    calls : int
        How many arrays went through `run`.
    """

    __slots__ = (
        "_dtype",
        "_frame",
        "_kernel",
        "_memory",
        "_nbytes",
        "_op",
        "_state",
        "_world",
        "calls",
    )

    def __init__(self, world: World, demand: Demand) -> None:
        self._world, self._memory = world, world.node_memory
        self._op, self._dtype, self._nbytes = demand.op, demand.dtype, demand.nbytes
        combiner = combiner_for(demand.operation, demand.reducer, demand.dtype)
        self._frame = self._memory.frame(combiner, demand.dtype.itemsize)
        self._state = self._memory.state
        self._kernel = kernel_for(demand.operation, demand.nbytes)
        self.calls = 0

    def serves(self, sendbuf: Any, recvbuf: Any, op: Any) -> bool:
        """Tell whether a call is of this kind and its arrays can be used as they are.

        Raises
        ------
        AttributeError
            If they are no arrays.
        """
        return (
            op is self._op
            and recvbuf.dtype is self._dtype
            and sendbuf.dtype is self._dtype
            and sendbuf.nbytes == self._nbytes
            and recvbuf.flags.carray
            and sendbuf.flags.c_contiguous
            and not self._memory.turns
        )

    def run(self, sendbuf: Any, recvbuf: Any) -> None:
        """Run the kernel on two arrays; returns when the result is there."""
        self._run(_address(sendbuf), _address(recvbuf))
        self.calls += 1

    def serve(self, demand: Demand) -> None:
        """Run the kernel for a call whose arguments may be of any form."""
        sendbuf, recvbuf, op = demand.arguments
        try:
            as_they_are = demand.op is op and self.serves(sendbuf, recvbuf, op)
        except AttributeError:
            as_they_are = False
        if as_they_are:
            return self._run(_address(sendbuf), _address(recvbuf))
        memory = lay_out(demand)
        assert memory.input is not None
        assert memory.output is not None
        self._run(memory.input.ctypes.data, memory.output.ctypes.data)
        if memory.finish is not None:
            memory.finish()
        return None

    def _run(self, given: int, taken: int) -> None:
        nbytes = self._nbytes
        if not self._kernel(self._frame, self._state, given, taken, nbytes):
            wait(
                lambda: self._kernel(self._frame, self._state, given, taken, nbytes),
                progress=engine().progress,
                abort=lambda: self._world.check("allreduce"),
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
    if demand.operation != "allreduce" or not demand.nbytes or world.node.size != world.size:
        return False
    if world.size < 2 or world.node_memory.turns:
        return False
    return combiner_for(demand.operation, demand.reducer, demand.dtype) is not None
