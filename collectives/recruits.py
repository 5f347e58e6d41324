"""New processes, started where no spare is left for the seat of a dead rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from mpi4py import MPI

from closeranks.comms import ulfm
from closeranks.comms.settings import PREFIX, setting
from closeranks.errors import Revoked

#: The setting that tells a new process that it joins others: how many seats there are.
_JOINS: Final = "JOINS"
#: What tells a process who has started it begins with one of these.
_PLACE: Final = ("PMIX_", "PRTE_", "OMPI_", PREFIX + _JOINS)


def recruit(everybody: MPI.Intracomm, count: int, seats: int) -> MPI.Intracomm | None:
    """Start processes that run the same command line, and let them join.

    Collective over ``everybody``; a second or two.

    Parameters
    ----------
    everybody : MPI.Intracomm
        All who are left.
    count : int
        How many are missing.
    seats : int
        How many members the first world had.

    Returns
    -------
    MPI.Intracomm or None
        Those who are left and, after them, the new ones, which are in `recruited`
        then; None, on all ranks, where none could be started, or ranks have died
        meanwhile.
    """
    info = MPI.Info.Create()
    info.Set("wdir", os.getcwd())  # noqa: PTH109 - what it is called, not what it is
    info.Set("map_by", "slot:OVERSUBSCRIBE")
    joint: MPI.Intercomm | None = None
    whole: MPI.Intracomm | None = None
    try:
        joint = everybody.Spawn("/usr/bin/env", _command(seats), count, info, root=0)
        whole = _merged(joint, is_new=False)
    except MPI.Exception as error:
        if joint is not None:
            ulfm.revoke(joint)  # others may wait for this rank there
        if ulfm.speaks_of_failure(error, everybody):
            ulfm.revoke(everybody)
        elif everybody.rank == 0:
            sys.stderr.write(f"closeranks: no new process in the place of {count} that have died:"
                             f" {error}; the others go on\n")  # fmt: skip
    finally:
        info.Free()
    if ulfm.agree(everybody, int(whole is not None))[0]:
        assert whole is not None
        ulfm.agree(whole, 1)  # the new ones wait for it: now all who are here have it
        return whole
    if joint is not None:
        ulfm.revoke(joint)  # the new ones end
    return None


def recruited() -> tuple[MPI.Intracomm, int, int] | None:
    """Join those who have started this process.

    Collective over them and all who were started with it.

    Returns
    -------
    tuple or None
        All of them, how many of those, the last, are new, and how many seats there
        are; None for a process that was not started in the place of another one.

    Raises
    ------
    SystemExit
        If they have given up: some have not got all, or ranks have died.
    """
    seats = setting(_JOINS)
    if seats is None:
        return None
    del os.environ[PREFIX + _JOINS]  # what this process starts joins nobody
    joint = MPI.Comm.Get_parent()
    whole, count = _merged(joint, is_new=True), joint.size
    try:
        ulfm.agree(whole, 1, unless=joint)
    except Revoked:
        ulfm.leave()
        raise SystemExit(1) from None
    return whole, count, int(seats)


def _merged(joint: MPI.Intercomm, *, is_new: bool) -> MPI.Intracomm:
    """Make one communicator of both sides."""
    joint.Set_errhandler(MPI.ERRORS_RETURN)
    merged = joint.Merge(high=is_new)
    merged.Set_errhandler(MPI.ERRORS_RETURN)
    return merged


def _command(seats: int) -> list[str]:
    """Write the command line of this process, and what it has changed since.

    The launcher gives it the environment that it gave to this one.  Not all is
    written, for others may read command lines.
    """
    block = Path("/proc/self/environ").read_bytes().split(b"\0")
    first = dict(os.fsdecode(word).partition("=")[::2] for word in block if word)
    gone = [word for name in first.keys() - os.environ.keys() for word in ("-u", name)]
    new = [f"{name}={value}" for name, value in os.environ.items() if first.get(name) != value]
    kept = [word for word in new if not word.startswith(_PLACE)]
    joins = f"{PREFIX}{_JOINS}={seats}"
    return ["-u", "EVENT_NOEPOLL", *gone, *kept, joins, sys.executable, *sys.orig_argv[1:]]
