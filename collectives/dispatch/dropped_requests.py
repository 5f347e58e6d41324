"""Buffers of requests that the program has dropped before they were over.

The library goes on reading and writing them.  So they are kept here, and let
go when it is done; the request itself stays the library's, as with mpi4py.
"""

from __future__ import annotations

import ctypes
from typing import Final

from mpi4py import MPI

from closeranks.collectives.engine.ignored_errors import has_ended

_dropped: Final[list[tuple[MPI.Request, object]]] = []
# The end of the interpreter comes before that of MPI, and frees what stands in modules.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_dropped))


def keep(request: MPI.Request, buffers: object) -> None:
    """Keep the buffers of a request until it is over.

    Local; calls no MPI, for the garbage collector comes here at any time.

    Parameters
    ----------
    request : MPI.Request
        Nobody else has it any more.
    buffers : object
        What it was started with.
    """
    _dropped.append((request, buffers))


def let_go() -> None:
    """Forget the buffers of requests that are over.  Local."""
    if _dropped:
        over = [one for one in list(_dropped) if has_ended(one[0])]
        for one in over:
            _dropped.remove(one)


def kept() -> int:
    """Count the requests whose buffers are kept.  Local."""
    return len(_dropped)
