"""What an MPI library says of ranks that have died (ULFM).

Open MPI does where it was started with ``--with-ft ulfm``, as ``closeranks run
--faults`` does.  Everything here is local.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def is_on(environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether the library notices that ranks die.

    Parameters
    ----------
    environ : mapping, optional
        The environment; default ``os.environ``.

    Returns
    -------
    bool
        False where the job was started without it: there a dead rank ends it.
    """
    known = os.environ if environ is None else environ
    return known.get("OMPI_MCA_mpi_ft_enable", "0").lower() in {"1", "true", "yes", "on"}


def listen() -> bool:
    """Let the library hear news, which it does only inside its calls.

    Returns
    -------
    bool
        False: nothing of ours has moved.
    """
    from mpi4py import MPI

    MPI.COMM_SELF.Iprobe()
    return False


def failed(comm: MPI.Intracomm) -> tuple[int, ...]:
    """Ask which ranks of a communicator have died, as far as it is known here.

    Parameters
    ----------
    comm : MPI.Intracomm
        Revoked or not.

    Returns
    -------
    tuple of int
        Ascending; empty where the library cannot tell.
    """
    from mpi4py import MPI

    try:
        dead = comm.Get_failed()
    except (MPI.Exception, NotImplementedError):
        return ()
    everybody = comm.Get_group()
    ranks = MPI.Group.Translate_ranks(dead, None, everybody)
    everybody.Free()
    dead.Free()
    return tuple(sorted(ranks))


def is_revoked(comm: MPI.Intracomm) -> bool:
    """Ask whether any rank has revoked a communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        Any.

    Returns
    -------
    bool
        False where the library cannot tell.
    """
    from mpi4py import MPI

    try:
        return comm.Is_revoked()
    except (MPI.Exception, NotImplementedError):
        return False


def revoke(comm: MPI.Comm) -> None:
    """Revoke a communicator where the library can; elsewhere nothing happens.

    Parameters
    ----------
    comm : MPI.Comm
        Every call on it ends with an error, on all its ranks.
    """
    from mpi4py import MPI

    try:
        comm.Revoke()
    except (MPI.Exception, NotImplementedError):
        return


def speaks_of_failure(error: BaseException) -> bool:
    """Tell whether an error says that ranks died or a communicator was revoked.

    Parameters
    ----------
    error : BaseException
        Any.

    Returns
    -------
    bool
        Whether it is one of ULFM's classes.
    """
    from mpi4py import MPI

    classes = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
    return isinstance(error, MPI.Exception) and error.Get_error_class() in classes
