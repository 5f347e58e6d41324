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


#: Bytes below which collectives of the library move all messages at once, 63 KiB by TCP and
#: some for headers. A longer one asks its receiver first, and Open MPI 5.0.11 never returns
#: where the rank that asked has died before its question was heard: it answers over the
#: connection whose lock it holds to note the death. Messages from rank to rank are not met.
BRIEF_BYTES: Final = 1 << 15
#: How long a communicator may be in the making on other ranks, seconds.
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
    """Let the library hear news, which it does only inside its calls.

    Returns
    -------
    bool
        False: nothing of ours has moved.
    """
    from closeranks.comms.mpi.mpi_handle import SELF

    SELF.Iprobe()
    return False


def failed(comm: MPI.Comm) -> tuple[int, ...]:
    """Ask which ranks of a communicator have died, as far as it is known here.

    Parameters
    ----------
    comm : MPI.Comm
        Revoked or not.

    Returns
    -------
    tuple of int
        Ascending; MPI.UNDEFINED for those of another group.  Empty where the
        library cannot tell.
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
    """Revoke a communicator where the library notices deaths; elsewhere do nothing.

    A rank of Open MPI 5 that is still making a communicator crashes when it hears
    that another one, which has made it, revokes it.  So what is young is revoked
    a moment later.

    Parameters
    ----------
    comm : MPI.Comm
        Every call on it ends with an error, on all its ranks.
    born_s : float
        When it was made here, by `time.monotonic`.
    """
    from mpi4py import MPI

    if not is_on():
        return  # Open MPI would stop its messages here, and tell nobody
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
    """Note that this process is the one that MPI knows, not what it forks.  Local."""
    _Exit.process = os.getpid()


def leave(status: int = 1) -> None:
    """Let the end of this process count as a death, however it ends.

    Local.  For a rank that gives up: who ends by MPI_Finalize is awaited for ever
    by those who agree or shrink.

    Parameters
    ----------
    status : int, optional
        The exit status that is told to the launcher then.
    """
    _Exit.leaves, _Exit.status = is_on(), status


def leave_copy(status: int) -> None:
    """Let a child that was forked end with this status.  Local."""
    _Exit.leaves, _Exit.status = False, status


def abort(status: int) -> None:
    """End the whole job, by a launcher that hears us; else nothing happens.

    Local.  The library's own abort ends nobody where ranks may die.

    Parameters
    ----------
    status : int
        The job's exit status.
    """
    _flush()
    if is_on() and exit_report.abort(status):
        time.sleep(_ABORTED_S)  # else the others would hear of a death, and go on
        _die()


def leaves() -> bool:
    """Tell whether `leave` was called.  Local."""
    return _Exit.leaves


def _end() -> None:
    """Say how this process ends; who leaves does so before MPI_Finalize.

    Killed: who just exits without MPI_Finalize is not reported to the others, and
    makes ``mpirun`` end them too, sometimes.
    """
    if _Exit.process not in (0, os.getpid()):
        _end_copy()
    if not _Exit.leaves:
        exit_report.end(0)  # or worse, which the launcher knows of who ends in good order
        exit_report.depart()
        return
    _flush()
    exit_report.end(_Exit.status)
    try:
        hard_deadline.let_out()
    finally:
        _die()


def _end_copy() -> NoReturn:
    """End a child that was forked, without MPI_Finalize: its parent calls that.

    The library would wait in it for threads that only the parent has.
    """
    _flush()
    os._exit(_Exit.status or int(hasattr(sys, "last_value")))


def _die() -> None:
    """Kill this process and what it has started, which may hold the launcher's pipes."""
    everybody = os.getpgrp() == os.getpid()  # launchers give each rank a group of its own
    (os.killpg if everybody else os.kill)(os.getpid(), signal.SIGKILL)


def _flush() -> None:
    """Let out what was printed; nobody may be there to read it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # whatever a program has put there: who leaves must end
            stream.flush()


atexit.register(_end)


def speaks_of_failure(error: BaseException, comm: MPI.Intracomm) -> bool:
    """Tell whether an error says that ranks died or a communicator was revoked.

    Local.  Collectives of Open MPI 5 may say "other" of a rank that has died, and
    who waits for several requests is told only that one has failed; then it counts
    what the library itself knows of the communicator.

    Parameters
    ----------
    error : BaseException
        Any.
    comm : MPI.Intracomm
        Whose ranks were spoken to.

    Returns
    -------
    bool
        Whether peers are to blame.
    """
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return False
    said = error.Get_error_class()
    if said in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED):
        return True
    is_vague = said in (MPI.ERR_OTHER, MPI.ERR_IN_STATUS)
    return is_vague and is_on() and (is_revoked(comm) or bool(failed(comm)))
