"""ULFM: which ranks have died, and how to revoke, shrink and leave.

Open MPI supports it if started with ``--with-ft ulfm``, as ``closeranks run
--faults`` does.  All but `shrink` is local.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from closeranks.comms.exit import exit_report, hard_deadline
from closeranks.comms.mpi.mpi_lock import TURN

if TYPE_CHECKING:
    from mpi4py import MPI


#: Bytes below which collectives of the library send eagerly: 63 KiB by TCP, less headers.
#: A longer message asks its receiver first. If the sender dies before its request is read,
#: Open MPI 5.0.11 never returns: it answers over the broken connection, and already holds
#: that connection's lock to note the death. Point-to-point messages are not affected.
BRIEF_BYTES: Final = 1 << 15
#: How long other ranks may still be making a communicator, seconds.
_YOUNG_S: Final = 0.05
#: How long the launcher may take to end a job that was aborted, seconds.
_ABORTED_S: Final = 30.0


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
    """Let the library make progress, which it does only inside its calls.

    Returns
    -------
    bool
        False: no work of ours has moved.
    """
    from closeranks.comms.mpi.mpi_handle import SELF

    SELF.Iprobe()
    return False


def failed(comm: MPI.Comm) -> tuple[int, ...]:
    """Ask which ranks of a communicator are known here to have died.

    Parameters
    ----------
    comm : MPI.Comm
        Revoked or not.

    Returns
    -------
    tuple of int
        Ascending; MPI.UNDEFINED for ranks of another group.  Empty if the library
        cannot tell.
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


def is_revoked(comm: MPI.Comm) -> bool:
    """Ask whether any rank has revoked a communicator.

    Parameters
    ----------
    comm : MPI.Comm
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


def revoke(comm: MPI.Comm, born_s: float = 0.0) -> None:
    """Revoke a communicator if the library notices deaths, else do nothing.

    Open MPI 5 crashes on a rank that is still making a communicator when another
    rank, which has made it, revokes it.  So a young communicator is revoked a
    moment later.

    Parameters
    ----------
    comm : MPI.Comm
        Every call on it then ends with an error, on all its ranks.
    born_s : float
        When it was made here, by `time.monotonic`.
    """
    from mpi4py import MPI

    if not is_on():
        return  # Open MPI would stop messages here only, and not tell other ranks
    young_s = born_s + _YOUNG_S - time.monotonic()
    if young_s > 0:
        time.sleep(young_s)
    try:
        comm.Revoke()
    except (MPI.Exception, NotImplementedError):
        return


def shrink(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Make a communicator of the ranks that live.  Collective, revoked or not.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks.

    Returns
    -------
    MPI.Intracomm
        Its ranks in the same order, without those that had died.
    """
    from mpi4py import MPI

    with TURN:
        made = comm.Shrink()
    assert isinstance(made, MPI.Intracomm)
    made.Set_errhandler(MPI.ERRORS_RETURN)
    return made


class _Exit:
    """How this process ends."""

    leaves = False
    status = 0
    process = 0


def begin() -> None:
    """Note that MPI knows this process, but not its forked children.  Local."""
    _Exit.process = os.getpid()


def leave(status: int = 1) -> None:
    """Let the end of this process count as a death, however it ends.

    Local.  For a rank that gives up: if it ended by MPI_Finalize, survivors that
    agree or shrink would wait for it for ever.

    Parameters
    ----------
    status : int, optional
        The exit status for the launcher.
    """
    _Exit.leaves, _Exit.status = is_on(), status


def leave_child(status: int) -> None:
    """Let a forked child end with this status.  Local."""
    _Exit.leaves, _Exit.status = False, status


def abort(status: int) -> None:
    """End the whole job, if the launcher listens to us; else do nothing.

    Local.  In a job that tolerates deaths the library's abort ends no other rank.

    Parameters
    ----------
    status : int
        The job's exit status.
    """
    _flush()
    if is_on() and exit_report.request_abort(status):
        time.sleep(_ABORTED_S)  # else survivors would notice a death, and go on
        _die()


def leaves() -> bool:
    """Tell whether `leave` was called.  Local."""
    return _Exit.leaves


def _end() -> None:
    """Report the end of this process; a rank that leaves ends before MPI_Finalize.

    It is killed.  If it just exited without MPI_Finalize, the others would not be
    told, and ``mpirun`` would sometimes end them too.
    """
    if _Exit.process not in (0, os.getpid()):
        _end_child()
    if not _Exit.leaves:
        exit_report.report_end(0)  # or worse: the launcher gets the status of `depart`
        exit_report.report_status_at_exit()
        return
    _flush()
    exit_report.report_end(_Exit.status)
    try:
        hard_deadline.flush_buffers()
    finally:
        _die()


def _end_child() -> NoReturn:
    """End a forked child without MPI_Finalize, which belongs to its parent.

    The library would wait in the child for threads that only the parent has.
    """
    _flush()
    os._exit(_Exit.status or int(hasattr(sys, "last_value")))


def _die() -> None:
    """Kill this process and its children, which may hold the launcher's pipes."""
    everybody = os.getpgrp() == os.getpid()  # launchers give each rank a group of its own
    (os.killpg if everybody else os.kill)(os.getpid(), signal.SIGKILL)


def _flush() -> None:
    """Flush standard output and error; a pipe may have no reader."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a program may have replaced it; the process must end
            stream.flush()


atexit.register(_end)


def speaks_of_failure(error: BaseException, comm: MPI.Intracomm) -> bool:
    """Tell whether an error says that ranks died or a communicator was revoked.

    Local.  Collectives of Open MPI 5 may report a dead rank as "other" error.  A
    wait for several requests reports only that one has failed.  In both cases the
    library's own record of the communicator decides.

    Parameters
    ----------
    error : BaseException
        Any.
    comm : MPI.Intracomm
        The communicator of the operation.

    Returns
    -------
    bool
        Whether peers caused the error.
    """
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return False
    said = error.Get_error_class()
    if said in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED):
        return True
    is_vague = said in (MPI.ERR_OTHER, MPI.ERR_IN_STATUS)
    return is_vague and is_on() and (is_revoked(comm) or bool(failed(comm)))
