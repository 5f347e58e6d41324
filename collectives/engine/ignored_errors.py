"""Where warnings and errors change nothing, and say nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Final

import numpy as np
from mpi4py import MPI

from closeranks.comms.mpi import ulfm

#: Whether ranks may die, so that no message may be given up before it is through.
_CAREFUL: Final = ulfm.is_on()


def _quiet() -> Context:
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context


#: Where reductions and kernels run: overflow and NaN warn nobody, as in MPI.
#: Entered under the engine's lock only.
QUIET: Final = _quiet()


def quietly(call: Callable[[], object]) -> None:
    """Call into MPI for an execution that is dead already.

    Parameters
    ----------
    call : callable
        Its MPI errors are dropped.
    """
    try:
        call()
    except MPI.Exception:
        return


def is_gone(request: MPI.Request) -> bool:
    """Return whether MPI has let go of a request of a dead execution.

    It is freed once the library has really done with it, and not before: Open MPI
    gives up a message of a revoked communicator when it is tested, and ends the
    job when that message is through after all ("Send error after request freed").

    Parameters
    ----------
    request : MPI.Request
        An error of the library means that it is gone.

    Returns
    -------
    bool
        True once its buffer is free.
    """
    try:
        return bool(request.Get_status() and request.Test())
    except MPI.Exception:
        return True


def has_ended(request: MPI.Request) -> bool:
    """Tell whether a request is over and has met no error; it is not freed.

    Parameters
    ----------
    request : MPI.Request
        Of whatever kind.

    Returns
    -------
    bool
        False as long as nobody knows.
    """
    try:
        return bool(request.Get_status())
    except MPI.Exception:
        return False


def is_over(request: MPI.Request) -> bool:
    """Test a request of a live execution; where ranks may die, as `is_gone` does.

    Parameters
    ----------
    request : MPI.Request
        Freed once it is over.

    Returns
    -------
    bool
        Whether it is; an error of the library is raised.
    """
    return bool((not _CAREFUL or request.Get_status()) and request.Test())


def test_some(requests: list[MPI.Request]) -> list[int]:
    """Return which requests have completed; raises the error of one that failed.

    Parameters
    ----------
    requests : list of MPI.Request
        Any number.

    Returns
    -------
    list of int
        Places in the list.
    """
    if _CAREFUL:
        return [place for place, request in enumerate(requests) if is_over(request)]
    statuses = [MPI.Status() for _ in requests]
    try:
        return MPI.Request.Testsome(requests, statuses) or []
    except MPI.Exception as error:
        if error.Get_error_class() != MPI.ERR_IN_STATUS:
            raise
        codes = {status.Get_error() for status in statuses} - {MPI.SUCCESS, MPI.ERR_PENDING}
        raise MPI.Exception(min(codes)) if codes else error from error
