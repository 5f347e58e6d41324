"""Starting MPI for a verb, which may be called without a launcher."""

from __future__ import annotations

import os
from typing import Final

from closeranks.jobs.launch.program import inside_a_job

#: How Open MPI's messages go, and the way of a process to itself, which needs no memory.
_WAYS: Final = "OMPI_MCA_btl"
_ITSELF: Final = "self"


def begin() -> None:
    """Start MPI, with nothing in node memory where this process is the whole job.

    Open MPI makes 16 MiB there, for the messages of the ranks of a node, and a
    process that no launcher has started leaves them behind.  The variable is
    taken back, so that nothing that this process starts has it.  Local; whatever
    the user has set stays.
    """
    alone = not inside_a_job() and _WAYS not in os.environ
    if alone:
        os.environ[_WAYS] = _ITSELF
    try:
        from mpi4py import MPI  # noqa: F401
    finally:
        if alone:
            del os.environ[_WAYS]
