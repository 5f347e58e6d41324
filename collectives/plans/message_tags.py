"""MPI tags: the execution, or the purpose, that a message of a world belongs to."""

from __future__ import annotations

from typing import Final

from mpi4py import MPI

from closeranks.comms.mpi.mpi_handle import WORLD
from closeranks.errors import Unavailable

#: Bits of a tag that hold the slot of a message in its plan.
SLOT_BITS: Final = 20
#: Least number of executions that may be in flight in a world.
_LEAST: Final = 2


def window() -> int:
    """Count the executions that the library can tell apart by tags.

    Local.

    Returns
    -------
    int
        At least 2; above their tags are those of `roll_call`, `state` and
        `farewell`.

    Raises
    ------
    Unavailable
        If the library has fewer.
    """
    upper = WORLD.Get_attr(MPI.TAG_UB)  # Open MPI has it on no other communicator
    assert isinstance(upper, int)
    executions = (upper - 2) >> SLOT_BITS
    if executions < _LEAST:
        raise Unavailable(f"MPI with tags up to {upper}", f"needs {farewell(_LEAST)} at least")
    return executions


def roll_call(executions: int) -> int:
    """Return the tag of arrival queries, with as many executions in flight."""
    return executions << SLOT_BITS


def state(executions: int) -> int:
    """Return the tag of replicated state, with as many executions in flight."""
    return roll_call(executions) + 1


def farewell(executions: int) -> int:
    """Return the tag of the last meeting, with as many executions in flight."""
    return state(executions) + 1
