"""New processes, started if no spare is left for the seat of a dead rank."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mpi4py import MPI

from closeranks.comms.liveness import spawn_guard
from closeranks.comms.liveness.agreement import agree
from closeranks.comms.liveness.collective_creation import all_or_none
from closeranks.comms.liveness.recovery_allgather import allgather, bcast
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.comms.mpi.mpi_handle import SELF, WORLD
from closeranks.comms.settings import PREFIX, setting
from closeranks.errors import Revoked, UsageError

#: The setting that tells a new process that it joins others: how many seats there are.
_JOINS: Final = spawn_guard.VARIABLE.removeprefix(PREFIX)
#: So many times in a row new processes are started of which no attempt is agreed.
_MOST_IN_VAIN: Final = 10
#: Tag of the messages by which both sides meet.
_MEETING: Final = 1
#: Variables by which a launcher tells a process its place begin with one of these.
_PLACE: Final = ("PMIX_", "PRTE_", "OMPI_", "PWD", PREFIX + _JOINS)


def recruit(
    everybody: MPI.Intracomm, count: int, seats: int, *, vain: int = 0
) -> MPI.Intracomm | None:
    """Start processes that run the same command line, and let them join.

    Collective over ``everybody``; takes a second or two.  One rank starts them,
    since a spawn does not survive a death among the ranks that take part.  The
    others wait in an agreement, which survives it.

    Parameters
    ----------
    everybody : MPI.Intracomm
        All living processes.
    count : int
        How many are missing.
    seats : int
        How many members the first world had.
    vain : int, optional
        How often in a row they were started, and no attempt was agreed.  The value
        of the rank that starts them counts.

    Returns
    -------
    MPI.Intracomm or None
        The survivors and, after them, the new processes, which are in `recruited`
        then.  None, on all ranks, if none could be started, if the survivors run
        different programs, or if ranks have died meanwhile.
    """
    leads = everybody.rank == 0
    try:
        changes = all_or_none(everybody, lambda: _in_common(everybody))
    except (MPI.Exception, Revoked):
        return None
    except UsageError as error:
        if leads:
            _say(f"no new process in the place of {count} that have died: {error}")
        return None
    starts = leads and not ulfm.failed(everybody)  # they may have told all, and died
    bridge = _started(count, _command(seats, changes), vain) if starts else None
    whole: MPI.Intracomm | None = None
    came, died = agree(everybody, int(not leads or bridge is not None))
    if came and not died:
        try:
            whole = _met(everybody, bridge)
        except (MPI.Exception, Revoked) as error:
            if leads:
                _say(f"new processes for {count} that have died did not join: {error}")
    if whole is None and bridge is not None:
        _give_up(bridge)
    return whole


def program() -> list[str]:
    """Give the command line of a new process: that of this one.  Local."""
    return [sys.executable, *sys.orig_argv[1:]]


def _in_common(everybody: MPI.Intracomm) -> dict[str, str | None]:
    """Give variables that all have alike, and the launcher has not.

    Collective.  A newcomer runs the program of the first process, in its folder,
    so all processes must run that.
    """
    mine, changes = _own()
    theirs, changes = bcast(everybody, (mine, changes), 0)
    unlike = {name for name, value in changes.items() if os.environ.get(name) != value}
    said = allgather(everybody, ("" if mine == theirs else mine, unlike))
    for rank, (other, names) in enumerate(said):
        if other:
            raise UsageError("init", f"rank 0 runs {theirs}, rank {rank} {other}",
                             "start all alike, or some more by run --spares")  # fmt: skip
        unlike |= names
    return {name: changes[name] for name in changes.keys() - unlike}


def _own() -> tuple[str, dict[str, str | None]]:
    """Give this process's command, folder and changed variables.  Local."""
    try:
        return f"{program()} in {os.path.realpath(_folder())!r}", _changes()
    except OSError as error:  # the others wait for what this one says
        return f"what cannot be read ({error})", {}


def _started(count: int, command: list[str], vain: int) -> MPI.Intracomm | None:
    """Start processes; gives them, after this one.  Local to the rank that leads."""
    if vain >= _MOST_IN_VAIN:  # what the program does there first fails, as it seems
        _say(f"no new process in the place of {count} that have died: those of {vain} recoveries"
             " in a row have ended none of their attempts")  # fmt: skip
        return None
    info = MPI.Info.Create()
    try:
        info.Set("wdir", _bytes(_folder()))
        info.Set("map_by", "slot:OVERSUBSCRIBE")
        words = [_bytes(word) for word in command]
        joint = SELF.Spawn("/usr/bin/env", words, count, info)
        bridge = _merged(joint, None, is_new=False)
    except (MPI.Exception, OSError) as error:  # the others wait for the answer
        _say(f"no new process in the place of {count} that have died: {error}")
        return None
    finally:
        info.Free()
    deferred_free.defer(bridge)
    return bridge


def _met(everybody: MPI.Intracomm, bridge: MPI.Intracomm | None) -> MPI.Intracomm:
    """Take the new processes in; all survivors do, or none.

    The bridge joins the leader, which alone has it, with the new ones.
    """
    link = all_or_none(
        everybody,
        lambda: everybody.Create_intercomm(0, bridge or SELF, 1, _MEETING),
        undo=_give_up,
    )
    whole = all_or_none(everybody, lambda: _merged(link, bridge, is_new=False), undo=_give_up)
    agree(whole, 1)  # the new processes wait for it: now all survivors have it
    return whole


def recruited() -> tuple[MPI.Intracomm, int, int] | None:
    """Join the processes that have started this one.

    Collective over them and all processes that were started with it.

    Returns
    -------
    tuple or None
        All of them, how many of them, the last, are new, and how many seats there
        are; None for a process that was not started in the place of another one.

    Raises
    ------
    SystemExit
        If they have given up: some ranks lack a communicator, or ranks have died.
    """
    ticket = setting(_JOINS)
    if ticket is None:
        return None
    del os.environ[PREFIX + _JOINS]  # what this process starts joins nobody
    new = WORLD
    waits: list[MPI.Comm] = []
    try:
        bridge = _merged(MPI.Comm.Get_parent(), None, is_new=True)
        deferred_free.defer(bridge)
        waits.append(bridge)
        link = new.Create_intercomm(0, bridge, 0, _MEETING)
        waits.append(link)
        whole = _merged(link, bridge, is_new=True)
        agree(whole, 1, unless=waits)
    except (MPI.Exception, Revoked):
        for comm in waits:
            _give_up(comm)
        ulfm.leave()
        raise SystemExit(1) from None
    return whole, new.size, spawn_guard.joined(ticket)


def _merged(joint: MPI.Intercomm, bridge: MPI.Intracomm | None, *, is_new: bool) -> MPI.Intracomm:
    """Make one communicator of both sides, the new ones last.

    No rank begins before all ranks of the bridge are here: then a failure wakes
    all of them.
    """
    joint.Set_errhandler(MPI.ERRORS_RETURN)
    deferred_free.free_at_end()
    deferred_free.defer(joint)
    try:
        if bridge is not None:
            bridge.Barrier()
        merged = joint.Merge(high=is_new)
    except MPI.Exception:
        _give_up(joint)
        raise
    merged.Set_errhandler(MPI.ERRORS_RETURN)
    return merged


def _give_up(comm: MPI.Comm) -> None:
    """Wake ranks that wait on a communicator that was just made anywhere."""
    ulfm.revoke(comm, time.monotonic())
    deferred_free.defer(comm)


def _say(what: str) -> None:
    """Tell the user the reason that seats stay vacant."""
    sys.stderr.write(f"closeranks: {what}; the others go on\n")


def _bytes(word: str) -> Any:
    """Give a word as the system has it: mpi4py passes texts on as UTF-8 alone."""
    return os.fsencode(word)


def _environment(process: int | str) -> dict[str, str]:
    """Give the environment in which a process was started."""
    block = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(word).partition("=")[::2] for word in block if word)


def _folder() -> str:
    """Name the folder in which this process was started: the program begins anew.

    Paths in its command line are relative to it, wherever the program is now.
    """
    return _environment("self").get("PWD") or os.getcwd()  # noqa: PTH109 - as it is called


def _changes() -> dict[str, str | None]:
    """Give variables that differ from the launcher's; None: it is gone here.

    The launcher passes its own environment to processes started later, without
    changes by the program or by an ``env`` before it.  Only changes are given,
    since other users may read command lines.
    """
    try:
        given = _environment(os.getppid())
    except OSError:  # another user's
        given = _environment("self")
    names = {name for name in given.keys() | os.environ.keys()
             if given.get(name) != os.environ.get(name)}  # fmt: skip
    return {name: os.environ.get(name) for name in names if not name.startswith(_PLACE)}


def _command(seats: int, changes: Mapping[str, str | None]) -> list[str]:
    """Write the command line of this process, with the changes for it."""
    gone = [word for name in changes if changes[name] is None for word in ("-u", name)]
    new = [f"{name}={value}" for name, value in changes.items() if value is not None]
    joins = f"{PREFIX}{_JOINS}={seats}"
    return ["-u", "EVENT_NOEPOLL", *gone, *new, joins, *spawn_guard.command(program())]
