"""The short way into node memory: a blocking call, one kernel, nothing between.

For calls that are known to be served by a kernel alone: machine code calls it,
see `closeranks.collectives.shortcut`.  The order of a node's segments is that
of the calls, so this way is open only while no leaf waits for its turn; a rank
that takes the engine's way meanwhile meets the others all the same, since both
ways run the same kernel and count the same sequence number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from closeranks.collectives import code_store
from closeranks.collectives.demand import lay_out
from closeranks.collectives.engine import engine
from closeranks.collectives.problem import REDUCING
from closeranks.collectives.shared_run import combiner_for, kernel_for
from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from closeranks.collectives.demand import Demand
    from closeranks.collectives.world import World

#: Operations that have a short way.
OPERATIONS = frozenset({"allreduce", "allgather", "alltoall", "bcast", "reduce_scatter_block"})


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
    address : int
        Of what machine code knows about it, see
        `closeranks.collectives.shortcut_words`.
    """

    __slots__ = (
        "_entry",
        "_finish",
        "_fixed",
        "_keeps",
        "_kernel",
        "_operation",
        "_world",
        "address",
    )

    def __init__(self, world: World, demand: Demand) -> None:
        from closeranks.collectives import shortcut_words as code

        self._world, self._operation = world, demand.operation
        memory = world.node_memory
        combiner = combiner_for(demand.operation, demand.reducer, demand.dtype)
        frame = memory.frame(combiner, demand.dtype.itemsize, demand.root)
        self._kernel = kernel_for(demand.operation, demand.nbytes)
        self._finish = self._finished
        entry = self._entry = np.zeros(code.ENTRY, np.int64)
        self._fixed = frame.ctypes.data, memory.state.ctypes.data, demand.nbytes
        entry[code.E_KERNEL] = code_store.address_of(self._kernel)
        entry[code.E_FRAME], entry[code.E_STATE], entry[code.E_BYTES] = self._fixed
        entry[code.E_ROOT] = demand.root
        entry[code.E_QUEUE], entry[code.E_SEQUENCE] = memory.queue_at, world.sequence_at
        entry[code.E_IN_PLACE] = demand.operation == "allreduce"
        entry[code.E_FINISH] = id(self._finish)
        self._keeps = (demand.op, *dtypes(demand))
        if demand.operation in REDUCING:
            entry[code.E_OP] = id(demand.op)
        entry[code.E_GIVEN_TYPE : code.E_TAKEN_TYPE + 1] = list(map(id, self._keeps[1:]))
        self.address = entry.ctypes.data

    @property
    def calls(self) -> int:
        """How many calls machine code has served."""
        from closeranks.collectives.shortcut_words import E_CALLS

        return int(self._entry[E_CALLS])

    def followed_by(self, other: Near) -> None:
        """Let calls of this size that are of another kind be another one's.  Local."""
        from closeranks.collectives.shortcut_words import E_NEXT

        self._entry[E_NEXT] = other.address

    def ready(self, demand: Demand) -> Callable[[], None]:
        """Prepare a call whose arguments may be of any form; what is given runs it once."""
        memory = lay_out(demand)
        given, taken = (
            0 if part is None else part.ctypes.data for part in (memory.input, memory.output)
        )

        def serve() -> None:
            self._world.sequence()
            self._wait(given, taken)
            if memory.finish is not None:
                memory.finish()

        return serve

    def _finished(self) -> None:
        """Wait for the kernel that machine code has begun."""
        from closeranks.collectives.shortcut_words import E_GIVEN, E_TAKEN

        self._wait(int(self._entry[E_GIVEN]), int(self._entry[E_TAKEN]))

    def _wait(self, given: int, taken: int) -> None:
        frame, state, nbytes = self._fixed
        step = partial(self._kernel, frame, state, given, taken, nbytes)
        if not step():
            wait(step, progress=engine().progress, abort=self._abort)

    def _abort(self) -> None:
        self._world.check(self._operation)


def dtypes(demand: Demand) -> tuple[object, object]:
    """Give the types of the arrays that a call was made with; None of what is no array.

    Parameters
    ----------
    demand : Demand
        One of `OPERATIONS`.

    Returns
    -------
    tuple of object
        Of the first array and of the second one.
    """
    given, *others = demand.arguments
    taken = given if demand.operation == "bcast" else others[0]
    known = getattr(given, "dtype", None), getattr(taken, "dtype", None)
    return known if demand.operation != "allreduce" or known[0] else (known[1], known[1])


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
