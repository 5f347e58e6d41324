"""The end of a job by an uncaught error, as under ``python -m mpi4py``.

If an error reaches the top of the interpreter, the rank would wait in
MPI_Finalize for the others, and the others for it.  `SystemExit` does not
reach it.  A rank that has left its communicator by `SystemExit`, and then
ends, ends the job with that status.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, NoReturn, Protocol

from closeranks.comms.liveness.failure_notice import Notice, status_of
from closeranks.errors import Revoked

#: How long other ranks may take to report errors of their own, seconds.
_OTHERS_S: Final = 0.5
#: How long the library's own end of the job may take, seconds.
_ABORT_S: Final = 1.0
_LOOK_S: Final = 0.01
#: The descriptor of standard error.
_ERRORS: Final = 2

_Show = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class LeavableFamily(Protocol):
    """A family that this process has opened, and may leave by an error.

    `closeranks.comms.liveness.failure_notices.Notices`, which imports this module,
    is one.
    """

    notice: Notice | None

    def leave(self, error: BaseException | None) -> None:
        """Tell all ranks that this one gives up."""

    def all_left(self) -> bool:
        """Tell whether all other ranks have left."""

    def close(self) -> None:
        """Send and receive nothing any more."""


class _Process:
    """Families that this process has opened, and the last one it has left."""

    number = 0
    opened: Final[dict[int, LeavableFamily]] = {}
    left: LeavableFamily | None = None
    exit: SystemExit | None = None
    shown: BaseException | None = None
    shows = False


def family_opened(family: LeavableFamily) -> None:
    """Note that a family begins; a family left before is over.  Local."""
    if not _Process.number:
        atexit.register(_end_of_process)
    _Process.number, _Process.exit = os.getpid(), None
    _Process.opened[id(family)] = family
    _drop_left()
    _hook_in()


def family_closed(family: LeavableFamily) -> None:
    """Note that a family has ended.  Local, harmless twice."""
    _Process.opened.pop(id(family), None)


def family_left(family: LeavableFamily, error: BaseException | None) -> None:
    """Note that this process has left a family by an error.  Local."""
    _Process.opened.pop(id(family), None)
    _drop_left()
    _Process.left = family
    if threading.current_thread() is threading.main_thread():
        _Process.exit = error if isinstance(error, SystemExit) else None
        _hook_in()  # the program may have set its own since


def _drop_left() -> None:
    """Close the family that was left before."""
    gone, _Process.left = _Process.left, None
    if gone is not None:
        gone.close()


def _hook_in() -> None:
    """Install a hook for uncaught errors, in front of the present hook."""
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """Shows an error as the program shows it, and ends the job if it is at the top.

    Parameters
    ----------
    before : callable
        The hook so far; it may call another `_Hook` in its turn.
    """

    def __init__(self, before: _Show) -> None:
        self._before = before

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        is_outer, _Process.shows = not _Process.shows, True
        try:
            if _speaks_of_others(error) and self._before is sys.__excepthook__:
                _say(f"closeranks: {error}")
            else:
                self._before(kind, error, trace)
        finally:
            _Process.shows = not is_outer
        _Process.shown = error
        if is_outer and _is_at_the_top(trace):
            _end(error)


def _is_at_the_top(trace: TracebackType | None) -> bool:
    """Tell whether the program itself ends by an error: no console, no test."""
    is_interactive = sys.flags.interactive or hasattr(sys, "ps1")
    return trace is not None and trace.tb_frame.f_back is None and not is_interactive


def _speaks_of_others(error: BaseException | None) -> bool:
    """Tell whether an error only repeats the notice of another rank."""
    return isinstance(error, Revoked) and bool(error.cause)


def _end(error: BaseException) -> None:
    """End the job if this process has a family, or has left one."""
    families = list(_Process.opened.values())
    if _Process.left is not None:
        families.append(_Process.left)
    if not families or os.getpid() != _Process.number:
        return
    _flush()
    for one in families:
        one.leave(error)
    said = [one.notice.status for one in families if one.notice is not None]
    _abort(next(filter(None, said), status_of(error)), families, hurries=True)


def _end_of_process() -> None:
    """End the job with the status that this process has left by, if any."""
    if os.getpid() != _Process.number:
        return
    last = getattr(sys, "last_value", None)
    if last is not None and last is not _Process.shown and _is_at_the_top(last.__traceback__):
        _end(last)  # the program has replaced our hook
    error, family = _Process.exit, _Process.left
    if error is None or family is None or not _is_at_the_top(error.__traceback__):
        return
    if status := status_of(error):
        _flush()
        _abort(status, [family], hurries=False)


def _abort(status: int, families: list[LeavableFamily], *, hurries: bool) -> None:
    """End the job a moment later; not if all ranks end in the same way."""
    until_s = time.monotonic() + _OTHERS_S
    while time.monotonic() < until_s:
        if not hurries and all(one.all_left() for one in families):
            return
        time.sleep(_LOOK_S)
    _flush()
    _end_job(status)


def end_at_once(why: str, status: int) -> NoReturn:
    """End this process, and the job with it, from any thread.

    Parameters
    ----------
    why : str
        One line for standard error.
    status : int
        The exit status.
    """
    _say(why)
    _flush()
    _end_job(status)


def _end_job(status: int) -> NoReturn:
    """Let the library end the job; end this process if it does not."""
    from mpi4py import MPI

    from closeranks.comms.mpi.mpi_handle import WORLD

    last = threading.Timer(_ABORT_S, os._exit, (status,))
    last.daemon = True
    with suppress(RuntimeError):  # the interpreter may be ending
        last.start()
    if MPI.Is_initialized() and not MPI.Is_finalized():
        WORLD.Abort(status)
    os._exit(status)


def _say(line: str) -> None:
    """Write a line to standard error, even if sys.stderr was replaced."""
    with suppress(OSError):
        os.write(_ERRORS, f"{line}\n".encode(errors="replace"))


def _flush() -> None:
    """Flush standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a program may have replaced it
            stream.flush()
