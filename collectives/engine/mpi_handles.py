"""MPI handles and addresses as numbers, for a loop that calls MPI itself.

Open MPI's handles are pointers and MPICH's are ints; both fit an int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.engine.leaves import Native
from closeranks.collectives.reduction.op import Reducer

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.bound_plan import Bound

#: Places in `handles`: the traffic communicator, MPI_BYTE, the element, the op.
TRAFFIC: Final = 0
BYTE: Final = 1
ELEMENT: Final = 2
OP: Final = 3
#: First of the communicators of leaves, one for every entry of ``Table.actions``.
LANES: Final = 4


def handle(thing: MPI.Comm | MPI.Datatype | MPI.Op | MPI.Request) -> int:
    """Return an MPI handle as the int64 with the same bits.  Local.

    Parameters
    ----------
    thing : MPI.Comm, MPI.Datatype, MPI.Op or MPI.Request
        What to name to the C library.
    """
    number: int = thing.handle & (2**64 - 1)
    return number - 2**64 if number >= 2**63 else number


def handles(bound: Bound) -> NDArray[np.int64]:
    """Return the handles that a bound plan needs.

    Local.

    Parameters
    ----------
    bound : Bound
        The plan.

    Returns
    -------
    ndarray, shape (LANES + len(actions),), dtype int64
        See `TRAFFIC`, `BYTE`, `ELEMENT`, `OP`, `LANES`; null handles where there
        is nothing: no element MPI has a name for, no native leaf.
    """
    from mpi4py import MPI

    reducer = bound.reducer if isinstance(bound.reducer, Reducer) else None
    element = reducer.datatype if reducer else None
    op = reducer.op if reducer else None
    found = [
        handle(bound.world.traffic),
        handle(MPI.BYTE),
        handle(element or MPI.DATATYPE_NULL),
        handle(op or MPI.OP_NULL),
    ]
    runs = [run for run in bound.native.values() if isinstance(run, Native)]
    lanes = {id(run.leaf): run.lane.comm for run in runs}
    found += [handle(lanes.get(id(action), MPI.COMM_NULL)) for action in bound.table.actions]
    return np.array(found, np.int64)


def addresses(bound: Bound) -> NDArray[np.int64]:
    """Return the address of every buffer, 0 where a register sizes it.  Local.

    Parameters
    ----------
    bound : Bound
        The plan.

    Returns
    -------
    ndarray, shape (buffers,), dtype int64
        Valid until the next `Bound.attach`.
    """
    found = [0 if array is None else array.ctypes.data for array in bound.memory]
    return np.array(found, np.int64)
