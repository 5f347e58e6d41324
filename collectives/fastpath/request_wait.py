"""A short wait for a request of the MPI library, without a line of Python.

Where ranks share a core, all that Python looks at has left the caches when a
rank has its turn again.  A wait in Python then costs more than the operation.
So machine code waits first, for `MOST_S` at most: it hears of no rank that
gives up.  It yields to other ranks at once where these outnumber cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.interpreter import REQUEST_WAIT
from closeranks.collectives.engine.loop_mpi_functions import is_wide, pointers
from closeranks.collectives.fastpath import request_wait_layout as at
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import FAST, address_in_python, builtin
from closeranks.comms.wait import is_crowded

#: The longest wait in seconds, begun and not over.
MOST_S: Final = 1e-3
#: Looks between two yields.  A library that yields does so in every look, and one that does
#: not takes half a microsecond for a look.
_LOOKS: Final = 4
#: Functions of the interpreter, in the order of the record.
_FUNCTIONS: Final = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyBool_FromLong")
_LATER_FUNCTIONS: Final = ("PyObject_Vectorcall", "PyObject_SetAttr", "Py_DecRef")


def _knows_nothing(request: MPI.Request, status: MPI.Status | None) -> bool:
    del request, status
    return False


class ShortWait:
    """The short wait of this process, see `load`.

    Attributes
    ----------
    wait : callable
        Takes an operation of the library and a status, as `MPI.Request.Wait`.
        True if it is over, and ``_keeps`` is None now.  Until it is loaded, and in
        a forked child, it says False.
    """

    wait: Callable[[MPI.Request, MPI.Status | None], bool] = staticmethod(_knows_nothing)
    _record = np.zeros(at.RECORD, np.int64)
    _kept = MPI.Request.Wait, sys.intern("_keeps"), None

    @classmethod
    def load(cls) -> None:
        """Load it, and follow `is_crowded`.  Local; compiled code has been loaded."""
        calls, record = pointers(), cls._record
        record[at.YIELD] = calls.relax if is_crowded() else 0
        if cls.wait is not _knows_nothing or MPI._sizeof(MPI.Status) > at.STATUS_BYTES:
            return
        record[: at.INQUIRE] = list(map(address_in_python, _FUNCTIONS))
        record[[at.INQUIRE, at.CLOCK]] = calls.inquire, calls.clock
        request = MPI.Request()
        record[at.HANDLE] = MPI._addressof(request) - id(request)
        record[at.MASK] = -1 if is_wide() else 0xFFFFFFFF
        record[[at.LOOKS, at.MOST_NS]] = _LOOKS, round(MOST_S * 1e9)
        record[at.VECTORCALL : at.WAIT] = list(map(address_in_python, _LATER_FUNCTIONS))
        record[at.WAIT :] = list(map(id, cls._kept))
        code, doc = code_cache.address_of(*REQUEST_WAIT), "Wait a moment for a request."
        cls.wait = staticmethod(builtin("wait_a_moment", doc, code, FAST, record))

    @classmethod
    def become_child(cls) -> None:
        """Know nothing any more: a forked child is no rank.  Local."""
        cls.wait = staticmethod(_knows_nothing)


os.register_at_fork(after_in_child=ShortWait.become_child)
