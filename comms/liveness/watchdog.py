"""The watchdog: a process beside the ranks of a node that ends stopped ranks.

A stopped rank (SIGSTOP, a full terminal, an operator) is not dead.  The
library waits for it for ever, in a collective and in the recovery from it.  So
the watchdog kills it, and the library notices the death.  Only the kernel's
word counts: the rank is stopped, and has not run since the previous look.
Three kinds of ranks are left alone:

* a rank that computes, however long or little;
* a rank that a debugger traces;
* a rank whose launcher is stopped too, as when a user suspends a job: its
  parent is stopped, or ``closeranks run`` does not answer.

The watchdog also holds the pipe for each rank's errors, a moment longer than
the rank does.  When that pipe is closed, Open MPI's launcher takes the rank
for ended.  If it hears so before it reads the end of the rank's PMIx
connection, its PMIx 5.0.11 may crash, with all its ranks.  It frees the rank's
record while it reads that end, then looks at it once more (`lost_connection`,
`pmix_execute_epilog`).

This file is also the program, and needs nothing but Python; see `start`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

#: In so many looks a rank has to be stopped before it is ended.
LOOKS: Final = 11
#: How long ``closeranks run`` may take to answer, in seconds.
_PATIENCE_S: Final = 1.0
#: Shortest time to hold the pipe of a process that has ended, in seconds; and to hold all
#: pipes after the last process, mostly a good end: then nothing is looked at.
_LINGER_S, _LAST_S = 0.2, 0.02


class WatchedRank:
    """One rank: how long it has been stopped.

    Parameters
    ----------
    looks : int
        In how many looks, one after the other, it has to be stopped.
    """

    def __init__(self, looks: int = LOOKS) -> None:
        self._looks, self._stopped, self._turns = looks, 0, ""

    def is_over(self, state: str, parent: str, turns: str) -> bool:
        """Take the result of a look; tell whether the rank is to be ended.

        Looks are counted, not seconds: time in which the watchdog was stopped
        together with its ranks must not count.

        Parameters
        ----------
        state, parent : str
            State of its process and of its parent's, as in ``/proc/PID/stat``; the
            launcher counts as a parent.
        turns : str
            How often it has been on a core, in any form.  A rank that has run since
            the last look is not dead, and its count begins again.

        Returns
        -------
        bool
            True at most once.
        """
        has_run, self._turns = turns != self._turns, turns
        if state != "T" or parent == "T":
            self._stopped = 0
        else:
            self._stopped = 1 if has_run else self._stopped + 1
        return self._stopped == self._looks


class _Look(NamedTuple):
    """A process as ``/proc/PID/stat`` shows it."""

    state: str
    parent: int
    started: int


class _Watched(NamedTuple):
    """A process: when it started, how long it has been stopped, and its errors' pipe."""

    started: int
    watched: WatchedRank
    errors: ExitStack


#: Watched processes of this node, and the time after which a stopped one is ended.
_watched: Final[dict[int, float]] = {}


def start(pids: Iterable[int], silence_s: float) -> None:
    """Start a watchdog, unless all processes have one that is as quick.

    Local; it ends when the last of the processes has.  It is no child of this
    process, so no program waits for it.  It has a process group of its own, so
    signals of a terminal to the ranks spare it.  But it has no session of its own:
    Linux schedules sessions against each other.  Linux 6.18 lets a session wait
    for seconds behind one with processes that always yield, as MPI ranks do.

    Parameters
    ----------
    pids : iterable of int
        Ranks of this node, in the PID namespace of this process.
    silence_s : float
        How long a rank may be stopped, in seconds.
    """
    new = [pid for pid in pids if _watched.get(pid, float("inf")) > silence_s]
    if not new:
        return
    _watched.update(dict.fromkeys(new, silence_s))
    words = [sys.executable, "-I", "-S", __file__, str(silence_s), *map(str, new)]
    quiet = [(os.POSIX_SPAWN_OPEN, handle, os.devnull, os.O_RDWR, 0) for handle in range(3)]
    between = os.posix_spawn(words[0], words, os.environ, file_actions=quiet, setpgroup=0)
    with suppress(ChildProcessError):  # a program may have them reaped
        os.waitpid(between, 0)


def watch(pids: Sequence[int], silence_s: float, environ: Mapping[str, str] = os.environ) -> None:
    """Watch processes until the last one has ended.

    Parameters
    ----------
    pids : sequence of int
        The processes; any that have ended already are left out.
    silence_s : float
        How long a process may be stopped, in seconds.
    environ : mapping of str to str, optional
        Names the address at which ``closeranks run`` answers.
    """
    launcher = WatchedLauncher(environ)
    watched_ranks = {pid: _Watched(look.started, WatchedRank(), _errors_of(pid))
             for pid in pids if (look := _look(pid)) is not None}  # fmt: skip
    ended: list[tuple[float, ExitStack]] = []
    while watched_ranks:
        time.sleep(silence_s / (LOOKS - 1))
        looks = {pid: look for pid in watched_ranks if (look := _look(pid)) is not None}
        sleeps = any(look.state == "T" for look in looks.values()) and launcher.sleeps()
        until_s = time.monotonic() + _LINGER_S
        for pid, charge in list(watched_ranks.items()):
            look = looks.get(pid)
            if look is None or look.started != charge.started:  # a number may be given again
                ended.append((until_s, watched_ranks.pop(pid).errors))
            elif charge.watched.is_over(
                look.state, "T" if sleeps else _parent_state(look), _turns(pid, look)
            ):
                os.kill(pid, signal.SIGKILL)  # a stopped process keeps its number
        while ended and ended[0][0] <= time.monotonic():
            ended.pop(0)[1].close()
    time.sleep(_LAST_S)
    for _, errors in ended:
        errors.close()


class WatchedLauncher:
    """``closeranks run``, which does not answer while it is suspended.

    Its kernel accepts connections even then, so there is one at a time.

    Parameters
    ----------
    environ : mapping of str to str
        With ``CLOSERANKS_VOTES``, see `closeranks.comms.exit.exit_report`.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        addresses, _, rest = environ.get("CLOSERANKS_VOTES", "").partition(":")
        self._addresses, (port, _, token) = addresses.split(","), rest.partition(":")
        self._port = int(port) if port.isdigit() else 0
        self._line = f"{token} here\n".encode()
        self._call: socket.socket | None = None

    def sleeps(self) -> bool:
        """Tell whether it listens, but does not answer.

        Local; takes a second or two where it does not.

        Returns
        -------
        bool
            False also if nobody listens.
        """
        if self._call is None:
            patience_s = _PATIENCE_S
            try:
                self._call = self._called()
            except TimeoutError:
                return True
        else:
            patience_s = 0.0
        if self._call is None:
            return False
        if not select.select([self._call], [], [], patience_s)[0]:
            return True
        self._call.close()
        self._call = None
        return False

    def _called(self) -> socket.socket | None:
        """Connect to it; None if nobody listens, TimeoutError if that is not known."""
        late: TimeoutError | None = None
        for address in filter(None, self._addresses):
            try:
                call = socket.create_connection((address, self._port), timeout=_PATIENCE_S)
                call.sendall(self._line)
            except TimeoutError as error:
                late = error
            except OSError:
                continue
            else:
                return call
        if late is not None:
            raise late
        return None


def _errors_of(pid: int) -> ExitStack:
    """Hold the pipe for the errors of a process, if they go into one."""
    held, path = ExitStack(), Path(f"/proc/{pid}/fd/2")
    with suppress(OSError):  # it has ended, or belongs to another user now
        if path.is_fifo():
            held.callback(os.close, os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    return held


def _look(pid: int) -> _Look | None:
    """Look at a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", 0) as file:  # noqa: PTH123 - half as dear as text
            words = file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return None if words[0] in "ZX" else _Look(words[0], int(words[1]), int(words[19]))


def _parent_state(look: _Look) -> str:
    """Give the state of the parent of a stopped process."""
    parent = _look(look.parent) if look.state == "T" else None
    return parent.state if parent else ""


def _turns(pid: int, look: _Look) -> str:
    """Give how often a stopped process has been on a core.

    Only its first thread counts, which runs and stops with all others.  Time on
    cores would not do: the system may count it in ticks.
    """
    if look.state != "T":
        return ""
    try:
        words = Path(f"/proc/{pid}/status").read_bytes()  # its name may be anything
    except OSError:
        return ""
    return words.partition(b"voluntary_ctxt_switches")[2].decode()


if __name__ == "__main__":
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a dead rank's sockets must not stay
        with suppress(OSError):  # the descriptor of the list itself
            if int(name) > 2:
                os.close(int(name))
    if not os.fork():
        watch([int(word) for word in sys.argv[2:]], float(sys.argv[1]))
