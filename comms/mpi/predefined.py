"""MPI's own communicators, whatever a program puts in their place.

``MPI.COMM_WORLD = closeranks.init()`` brings a program that names it in many
places to ours.  What is asked of the process must not end with that one.
"""

from __future__ import annotations

from typing import Final

from mpi4py import MPI

WORLD: Final[MPI.Intracomm] = MPI.COMM_WORLD
SELF: Final[MPI.Intracomm] = MPI.COMM_SELF
