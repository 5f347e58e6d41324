"""Reports of a rank to the launcher about its end.

An MPI launcher that tolerates deaths does not keep the exit status of dead
ranks.  ``closeranks run --faults`` therefore listens itself, at the addresses
in ``CLOSERANKS_VOTES``; a connection carries one line.  Without the variable
nothing is sent.  Everything here is local, takes a few seconds at most, and
never raises.

The exit status is known only at the end, and mpirun does not say which rank
had it.  `send_status_at_exit` lets the C library send it in the last step.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from closeranks.comms.settings import PREFIX, setting

#: The variable that says where the launcher listens: "address,address:port:token".
VARIABLE: Final = PREFIX + "VOTES"
#: The launcher's answer.
HEARD: Final = b"heard\n"
#: How many members report that they have ended well; any member may report a failure.
SPEAKERS: Final = 3
#: In jobs of at most so many processes each one reports its exit status.
MOST_LEAVERS: Final = 256
#: Longest wait for one address, in seconds.
_PATIENCE_S: Final = 1.0


class _Member:
    """The place of this process in the worlds it belongs to."""

    process = 0
    rank = sys.maxsize
    epoch = 0
    group = size = 0
    named = False
    families = 0
    mark = ""
    # With these the launcher knows that no process is missing, see `report_status_at_exit`.
    opens = attends = all_first = all_last = 0


def enter_world(rank: int, epoch: int, group: int = 0, size: int = 1) -> None:
    """Note the place of this process in a world that begins, or is to be opened.

    The first rank of a first world tells the launcher that its group has begun.
    It also tells when it is in a world of another group later.

    Parameters
    ----------
    rank : int
        In that world; of several worlds the smallest counts.
    epoch : int
        Of that world; of several worlds the largest counts.
    group : int, optional
        The group that counts these epochs: the rank in MPI_COMM_WORLD of the first
        process of its first world.  Of several groups the first counts.
    size : int, optional
        Of that world.
    """
    if not setting("VOTES"):
        return
    begins = rank == epoch == 0
    if not _Member.process:
        _Member.group, _Member.size, _Member.named = group, size, begins
    elif _Member.named and not epoch and (group != _Member.group or size > _Member.size):
        _tell(f"mixed {_Member.group}:0")
    _Member.process = os.getpid()
    _Member.rank, _Member.epoch = min(rank, _Member.rank), max(epoch, _Member.epoch)
    if begins:
        _tell(f"begun {_Member.group}:0" if _Member.group else "begun")


def report_opening() -> None:
    """Report that this process opens a family, perhaps after it has closed all.

    If it dies from now on, the others may go on without it.
    """
    _Member.opens += 1
    if _Member.mark and _tell(f"again {_Member.mark}"):
        _Member.mark = ""


def note_processes(everybody: int, group: int = -1) -> None:
    """Note how many processes go on together, with spares that wait.

    Parameters
    ----------
    everybody : int
        The number.
    group : int, optional
        Given by members that begin with them, see `enter_world`, and by their
        spares.
    """
    if group >= 0 and not _Member.attends:
        _Member.group, _Member.all_first = group, everybody
    _Member.attends, _Member.all_last = os.getpid(), everybody


def note_opened_family() -> None:
    """Note that this process has opened a family of communicators, or joined one."""
    _Member.families += 1


def has_family() -> bool:
    """Tell whether this process has a family of communicators that it has not closed."""
    return _Member.families > 0


def note_closed_family(rank: int) -> None:
    """Note that all members have closed a family; the first ones tell the launcher.

    No other process can go on for the members then, so each has to report its end.

    Parameters
    ----------
    rank : int
        In its last world.
    """
    _Member.families -= 1
    if rank < SPEAKERS and not _Member.families and os.getpid() == _Member.process:
        _Member.mark = f"{rank}.{secrets.token_hex(4)}"
        _tell(f"closed {_Member.mark}")


def report_end(status: int) -> None:
    """Report that this process ends, in the world it was in last.

    Only the first members report a success, and members that were among the first
    when the family was closed.  Processes without a seat, and forked children,
    report nothing.

    Parameters
    ----------
    status : int
        Its exit status.
    """
    if os.getpid() == _Member.process and (status or _Member.mark or _Member.rank < SPEAKERS):
        group = f"{_Member.group}:" if _Member.group else ""
        _tell(f"ended {group}{_Member.epoch} {exit_status(status)} {_Member.mark}".rstrip())


def report_overdue() -> None:
    """Report that a recovery takes too long: the whole job has to end."""
    if os.getpid() == _Member.process:
        _tell("overdue")


def report_status_at_exit() -> None:
    """Let the system send the exit status of this process to the launcher.

    The last call of a process that ends in good order.  Only processes that have
    opened exactly one communicator report, in jobs that are not too large.  If all
    but the dead have reported 0, the launcher knows that no other process has
    failed.  A process started by a script, or by another process, cannot speak for
    its parent and reports nothing.
    """
    where, pid = setting("VOTES"), os.getpid()
    if not where or _Member.opens != 1 or not pid == _Member.attends == os.getpgrp():
        return
    if max(_Member.all_first, _Member.all_last) > MOST_LEAVERS:
        return
    epoch = _Member.epoch if _Member.process else "waits"
    with suppress(ValueError):  # an unheard process counts as dead
        addresses, port, token = where.split(":")
        line = f"{token} leaves {_Member.group}:{epoch} {_Member.all_first} {_Member.all_last}\n"
        for address in addresses.split(","):
            with suppress(OSError):
                if call := _called(address, int(port), line):
                    send_status_at_exit(call)
                    return


def request_abort(status: int) -> bool:
    """Ask the launcher to end the whole job.

    Parameters
    ----------
    status : int
        The job's exit status.

    Returns
    -------
    bool
        Whether the launcher has heard.
    """
    return _tell(f"abort {exit_status(status)}")


def exit_status(code: object) -> int:
    """Give the status of a process that ends by ``sys.exit(code)``.

    Parameters
    ----------
    code : object
        None, a number, or an object that is printed.

    Returns
    -------
    int
        0 to 255; a status other than 0 never becomes 0.
    """
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return (code & 0xFF or 1) if code else 0


def _tell(words: str) -> bool:
    """Send a line to the launcher; tell whether it was heard."""
    where = setting("VOTES")
    if not where:
        return False
    problem: Exception | None = None
    try:
        addresses, port, token = where.split(":")
        for address in addresses.split(","):
            try:
                if _say(address, int(port), f"{token} {words}\n"):
                    return True
            except OSError as error:
                problem = error
    except ValueError as error:
        problem = error
    with suppress(OSError, ValueError, AttributeError):  # a program may have replaced it
        sys.stderr.write(f"closeranks: the launcher has not heard {words!r} ({problem})\n")
        sys.stderr.flush()
    return False


def _say(address: str, port: int, line: str) -> bool:
    """Send a line to one address; tell whether the launcher answers there."""
    call = _called(address, port, line)
    if call is not None:
        call.close()
    return call is not None


def _called(address: str, port: int, line: str) -> socket.socket | None:
    """Send a line to one address; give the connection if the launcher answers."""
    with ExitStack() as undone:
        call = socket.create_connection((address, port), timeout=_PATIENCE_S)
        undone.callback(call.close)
        call.sendall(line.encode())
        if call.recv(len(HEARD)) != HEARD:
            return None
        undone.pop_all()
    return call


#: Streams for exit statuses: they must live as long as the process.
_STREAMS: Final[list[Any]] = []


def send_status_at_exit(peer: socket.socket) -> bool:
    """Let one byte, the exit status, be sent to a peer when this process ends.

    Local.  Python's own exit functions run before the status is known.  The GNU C
    library calls ``on_exit`` functions with the status and a pointer, the
    arguments of ``fputc``.  Nothing is sent if the process is killed or ends by
    ``os._exit``, nor in a library without ``on_exit``.

    Parameters
    ----------
    peer : socket
        Closed here; the peer sees its end when the process has ended.

    Returns
    -------
    bool
        Whether the status will be sent.
    """
    import ctypes

    peer.settimeout(None)  # no timeout: else the descriptor does not block
    descriptor = peer.detach()
    library = ctypes.CDLL(None)
    try:
        on_exit, write = library.on_exit, library.fputc
    except AttributeError:
        os.close(descriptor)
        return False
    library.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.fdopen(descriptor, b"w"))
    if not stream:
        os.close(descriptor)
        return False
    _STREAMS.append(stream)
    os.register_at_fork(after_in_child=partial(_silence_child, descriptor))
    library.setbuf(stream, None)  # else it would be sent when all streams are flushed
    return bool(on_exit(ctypes.cast(write, ctypes.c_void_p), stream) == 0)


def _silence_child(descriptor: int) -> None:
    """Let a forked child send nothing: its end is not its parent's."""
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
