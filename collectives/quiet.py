"""Where warnings and errors change nothing, and say nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Final

import numpy as np
from mpi4py import MPI


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

    Parameters
    ----------
    request : MPI.Request
        Tested; an error of the library means that it is gone.

    Returns
    -------
    bool
        True once its buffer is free.
    """
    try:
        return bool(request.Test())
    except MPI.Exception:
        return True
