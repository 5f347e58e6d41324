"""The launcher's ear: ranks that may die tell it how the job goes."""

from __future__ import annotations

import hmac
import secrets
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import click
import psutil

from closeranks.comms.exit.exit_report import HEARD, MOST_LEAVERS, VARIABLE
from closeranks.comms.shm.node_identity import own_addresses
from closeranks.jobs.launch.exit_reports import Votes

#: Bytes of the longest line, and how many callers may be heard at once.
LINE_BYTES: Final = 128
CALLERS: Final = 256
#: How long a caller may take for its line, in seconds.
_PATIENCE_S: Final = 2.0
#: How long the ends of connections to processes that have ended are waited for, in seconds.
_LAST_WORDS_S: Final = 2.0
#: What only this machine can call.
_LOOP: Final = "127.0.0.1"
#: Seconds from an abort, and from a recovery that timed out, to the end of the
#: job: last words get through, and the others' reports of where they were.
_ABORT_S: Final = 0.2
_TIMED_OUT_S: Final = 5.0
#: Seconds that the launcher may take to end a job before it is killed itself.
_STUBBORN_S: Final = 5.0
#: Seconds from a look at the launcher to the next, and how many must have shown that it
#: does not see the end of what it has started.  That of Open MPI 5.0.11 was seen waiting
#: for a lock of its own, for ever, when many ranks had ended at once.
_LOOK_S: Final = 5.0
_LOOKS: Final = 3


class Poll:
    """Hears votes, in a thread, until it is closed; see `open_poll`.

    Parameters
    ----------
    here : bool, optional
        Whether all ranks are on this machine: then nobody else can call.

    Attributes
    ----------
    votes : Votes
        What was said so far.
    environment : dict of str to str
        What tells the ranks where to speak.
    """

    def __init__(self, *, here: bool = False) -> None:
        self.votes = Votes()
        self._ear = socket.create_server((_LOOP if here else "", 0), backlog=1024)
        self._ear.setblocking(False)
        self._bell, self._rope = socket.socketpair()
        self._token = secrets.token_hex(16)
        port = self._ear.getsockname()[1]
        named = [_LOOP] if here else own_addresses()
        self.environment = {VARIABLE: f"{','.join(named)}:{port}:{self._token}"}
        self._callers: dict[socket.socket, _Caller] = {}
        self._leavers: dict[socket.socket, _Leaver] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._child: subprocess.Popen[bytes] | None = None
        self._end_s, self._means = float("inf"), signal.SIGTERM
        self._look_s, self._blind = float("inf"), 0
        self._over = False
        self._thread = threading.Thread(target=self._listen, name="closeranks poll", daemon=True)
        self._thread.start()

    def attach(self, child: subprocess.Popen[bytes], *, starts_all: bool = False) -> None:
        """Say who is to be ended where a rank asks for the end of the job.

        Parameters
        ----------
        child : Popen
            The launcher.
        starts_all : bool
            Whether it starts all ranks itself: then it is ended, too, if it does not
            notice that they have ended.
        """
        self._child = child
        if starts_all:
            self._look_s = time.monotonic() + _LOOK_S
        self._rope.send(b"\0")

    def judge(self, status: int, ranks: int = 0) -> int:
        """Give the exit status of the job, and say why if nobody else has.

        Parameters
        ----------
        status : int
            The launcher's, which has ended.
        ranks : int, optional
            How many it has started.

        Returns
        -------
        int
            See `Votes.judge`.
        """
        until_s = time.monotonic() + _LAST_WORDS_S
        while status and self._leavers and time.monotonic() < until_s:
            time.sleep(0.01)
        silence = self.votes.silence(status, ranks)
        if silence is not None:
            click.echo(f"closeranks: {silence}: failed (the launcher's status is {status})",
                       err=True)  # fmt: skip
        return self.votes.judge(status, ranks)

    def close(self) -> None:
        """Hear nothing any more."""
        self._over = True
        self._rope.send(b"\0")
        self._thread.join()
        self._selector.close()
        for one in (*self._callers, *self._leavers, self._ear, self._bell, self._rope):
            one.close()

    def _listen(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(self._next_s()):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found is self._bell:
                    found.recv(16)
                elif found is self._ear:
                    self._admit()
                elif found in self._callers:  # else dropped by an earlier event
                    self._hear(found)
                elif found in self._leavers:
                    self._part(found)
            self._tidy()

    def _next_s(self) -> float | None:
        """How long nothing has to be done."""
        until_s = [one.until_s for one in self._callers.values()][:1]
        if self._child is not None:
            until_s += [self._end_s, self._look_s]
        next_s = min(until_s, default=float("inf"))
        return None if next_s == float("inf") else max(0.0, next_s - time.monotonic())

    def _admit(self) -> None:
        """Take a call; the oldest is dropped if there are too many."""
        with suppress(OSError):
            caller, _ = self._ear.accept()
            caller.setblocking(False)
            if len(self._callers) == CALLERS:
                self._drop(next(iter(self._callers)))
            self._callers[caller] = _Caller(time.monotonic() + _PATIENCE_S)
            self._selector.register(caller, selectors.EVENT_READ)

    def _drop(self, caller: socket.socket) -> None:
        del self._callers[caller]
        self._selector.unregister(caller)
        caller.close()

    def _hear(self, caller: socket.socket) -> None:
        """Take what a caller has said; it may say one line."""
        said = self._callers[caller]
        with suppress(OSError):
            more = caller.recv(LINE_BYTES)
            said.text += more
            if more and b"\n" not in said.text and len(said.text) < LINE_BYTES:
                return
            words = self._words(said.text[:LINE_BYTES])
            if words[:1] == ["leaves"] and len(self._leavers) < MOST_LEAVERS:
                caller.send(HEARD)
                del self._callers[caller]
                self._leavers[caller] = _Leaver(words[1:])
                return
            if self._count(words):
                caller.send(HEARD)
        self._drop(caller)

    def _part(self, leaver: socket.socket) -> None:
        """Take the exit status of a process; it counts when the process has ended."""
        said = self._leavers[leaver]
        with suppress(OSError):
            more = leaver.recv(LINE_BYTES)
            said.text += more
            if more and len(said.text) == 1:
                return
            if len(said.text) == 1:  # one that was forked would say more
                self._count(["left", *said.words, str(said.text[0])])
        del self._leavers[leaver]
        self._selector.unregister(leaver)
        leaver.close()

    def _words(self, text: bytes) -> list[str]:
        """Give the words of a line; none if it comes from a stranger."""
        line, ended, _ = text.partition(b"\n")
        token, *words = line.decode("ascii", "replace").split(" ")
        is_ours = ended and hmac.compare_digest(token.encode(), self._token.encode())
        return words if is_ours else []

    def _count(self, words: Sequence[str]) -> bool:
        """Count a vote; False if it is none."""
        try:
            self.votes = self.votes.after(words)
        except ValueError:
            return False
        if self.votes.aborted is not None:
            self._end_in(_ABORT_S)
        elif self.votes.timed_out:
            self._end_in(_TIMED_OUT_S)
        return True

    def _end_in(self, seconds: float) -> None:
        if self._means == signal.SIGTERM:  # else it is ending already
            self._end_s = min(self._end_s, time.monotonic() + seconds)

    def _tidy(self) -> None:
        """Drop callers that take too long, and end the job if it is time."""
        now_s = time.monotonic()
        for caller in [one for one, said in self._callers.items() if said.until_s <= now_s]:
            self._drop(caller)
        if self._child is not None and self._look_s <= now_s:
            self._look_s = now_s + _LOOK_S
            self._look(self._child.pid)
        if self._child is not None and self._end_s <= now_s:
            self._child.send_signal(self._means)
            self._means, self._end_s = signal.SIGKILL, now_s + _STUBBORN_S

    def _look(self, launcher: int) -> None:
        """End a launcher that does not notice that all it has started have ended."""
        self._blind = self._blind + 1 if _is_blind(launcher) else 0
        if self._blind == _LOOKS:
            click.echo(f"closeranks: all that process {launcher}, the launcher, has started have"
                       f" ended, and it has not noticed for {_LOOK_S * (_LOOKS - 1):.0f} s: it is"
                       " ended", err=True)  # fmt: skip
            self._end_in(0.0)


class _Caller:
    """What somebody has said so far, and until when it is waited for."""

    def __init__(self, until_s: float) -> None:
        self.text, self.until_s = b"", until_s


class _Leaver:
    """A process that has said where it was, and says its exit status when it ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.text = words, b""


@contextmanager
def open_poll(*, here: bool = False) -> Iterator[Poll]:
    """Hear votes for as long as a job runs.

    Parameters
    ----------
    here : bool, optional
        Whether all ranks are on this machine.

    Yields
    ------
    Poll
        Closed at the end.
    """
    poll = Poll(here=here)
    try:
        yield poll
    finally:
        poll.close()


def _is_blind(launcher: int) -> bool:
    """Whether all that a process has started have ended, and it has not looked."""
    try:
        process = psutil.Process(launcher)
        started, sleeps = process.children(), process.status() == psutil.STATUS_STOPPED
        ended = [one.status() == psutil.STATUS_ZOMBIE for one in started]
    except psutil.Error:  # it has just heard of one
        return False
    return bool(ended) and all(ended) and not sleeps
