"""Where the native collectives of a group of ranks run, one after the other."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mpi4py import MPI


class Lane(NamedTuple):
    """Where the native collectives of a group of ranks run.

    Attributes
    ----------
    comm : MPI.Intracomm
        The group's communicator.
    turns : deque
        ``(execution, step)``, in the order in which all ranks must issue them.
    """

    comm: MPI.Intracomm
    turns: deque[tuple[Any, int]]
