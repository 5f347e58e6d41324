"""Tasks to be done before MPI ends, by whatever call it ends.

Threads of this package call MPI, and other processes wait for the last
messages of this one.  The threads are stopped when the interpreter exits,
while MPI is still there.  If the program calls MPI_Finalize earlier, they are
stopped inside that call: MPI deletes the attributes of MPI_COMM_SELF first of
all (MPI-4.1, section 11.2.4).
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from closeranks.comms.exit import forked_child

_TASKS: Final[list[Callable[[], object]]] = []
_keyval: int | None = None


def before_finalize(task: Callable[[], object]) -> None:
    """Have a task done once before MPI ends; the last task comes first.

    Local.  Not done in a forked child: its threads are gone, and its locks may be
    held for ever.

    Parameters
    ----------
    task : callable
        Needed before MPI ends, or by other processes.
    """
    _TASKS.append(task)
    _watch_finalize()


def _finish() -> None:
    """Do the remaining tasks, all even if some fail.  Local, harmless twice."""
    if forked_child.is_child():
        return
    with ExitStack() as tasks:  # the last first
        while _TASKS:
            tasks.callback(_TASKS.pop(0))


def _watch_finalize() -> None:
    """Have MPI_Finalize do the tasks, once MPI is initialised."""
    global _keyval
    known: Any = sys.modules.get("mpi4py.MPI")
    if _keyval is not None or known is None or not known.Is_initialized():
        return
    from closeranks.comms.mpi.mpi_handle import SELF

    _keyval = known.Comm.Create_keyval(delete_fn=_deleted)
    SELF.Set_attr(_keyval, True)


def _deleted(comm: object, keyval: int, value: object) -> None:
    del comm, keyval, value
    _finish()


# Here, not with the first task: handlers that are registered while others run are never
# called, and a program's exit handler may make the first call.
atexit.register(_finish)
