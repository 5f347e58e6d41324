"""How a job with ranks that may die has ended, by the ranks' own reports.

`ExitReportListener` receives the reports in the launcher.  `ExitReports` gives
the exit status of the job that follows from them.
"""

from __future__ import annotations

import hmac
import re
import secrets
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import click
import psutil

from closeranks.comms.exit.exit_report import HEARD, MOST_LEAVERS, VARIABLE
from closeranks.comms.exit.hard_deadline import TRY_AGAIN
from closeranks.comms.shm.node_identity import own_addresses
from closeranks.errors import named

#: Such a status of a launcher speaks of a signal; another one but 0 is a program's.
_SIGNALS: Final = range(128, 128 + 65)
_MARK: Final = re.compile(r"\d{1,9}\.[0-9a-f]{8}")


class Parting(NamedTuple):
    """A process that has ended in good order.

    Attributes
    ----------
    group : int
        Of which it was a member, or a spare.
    epoch : int
        Of its last world; -1 for a spare that has waited to the end.
    first : int
        How many processes had begun together; 0 if it has come later.
    last : int
        How many were left, with those that waited.
    status : int
        Its exit status.
    """

    group: int
    epoch: int
    first: int
    last: int
    status: int


@dataclass(frozen=True)
class ExitReports:
    """Reports of all processes so far.

    Ranks speak for a group: the ranks that opened a communicator together.
    Epochs of two groups say nothing about each other.

    Parameters
    ----------
    begun : frozenset of int, optional
        Groups that have opened a communicator.
    mixed : frozenset of int, optional
        Groups with ranks in a communicator of another one.
    last : mapping of int to tuple of int, optional
        Of each group the largest epoch of which members said how they ended,
        and the largest status among them.  A rank that left in an earlier
        epoch was lost to the others.
    timed_out : bool, optional
        Whether a recovery has taken too long for anybody.
    aborted : int, optional
        The status given by the first rank that asked for the end of the whole
        job.
    closed : frozenset of str, optional
        Marks of members that have closed what they had opened, all together, and
        have not said how they ended: "RANK." and what tells two of them apart.
    left : tuple of Parting, optional
        Ends of processes that have ended in good order, as far as they say so.
    """

    begun: frozenset[int] = frozenset()
    mixed: frozenset[int] = frozenset()
    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    timed_out: bool = False
    aborted: int | None = None
    closed: frozenset[str] = frozenset()
    left: tuple[Parting, ...] = ()

    def after(self, words: Sequence[str]) -> ExitReports:
        """Count one more vote.

        Parameters
        ----------
        words : sequence of str
            ``here``, which counts nothing, ``begun``, ``ended EPOCH STATUS``
            or ``abort STATUS``; of another group than 0 ``begun GROUP:0`` and
            ``ended GROUP:EPOCH STATUS``; of one that is in another one, too,
            ``mixed GROUP:0``.  ``overdue`` where a recovery takes too long.
            ``closed MARK``, and then ``again MARK`` if the process opens
            more, or ``ended PLACE STATUS MARK``.  ``left GROUP:EPOCH FIRST
            LAST STATUS``, of a spare ``left GROUP:waits FIRST LAST STATUS``.

        Returns
        -------
        ExitReports
            With it.

        Raises
        ------
        ValueError
            If it is none of them.
        """
        match list(words):
            case ["here"]:
                return self
            case ["begun"]:
                return replace(self, begun=self.begun | {0})
            case ["begun", place] if ":" in place:
                return replace(self, begun=self.begun | {_place(place)[0]})
            case ["mixed", place] if ":" in place:
                return replace(self, mixed=self.mixed | {_place(place)[0]})
            case ["closed", mark] if _MARK.fullmatch(mark):
                return replace(self, closed=self.closed | {mark})
            case ["again", mark] if _MARK.fullmatch(mark):
                return replace(self, closed=self.closed - {mark})
            case ["ended", place, status, mark] if _MARK.fullmatch(mark):
                return self.after(["ended", place, status]).after(["again", mark])
            case ["ended", place, status]:
                group, epoch = _place(place)
                begun = self.begun | {group}
                said = epoch, int(status)
                last = {**self.last, group: max(said, self.last.get(group, said))}
                return replace(self, begun=begun, last=last)
            case ["overdue"]:
                return replace(self, timed_out=True)
            case ["left", place, *numbers] if len(numbers) == 3:
                return replace(self, left=(*self.left, _parting(place, numbers)))
            case ["abort", status]:
                first = int(status) if self.aborted is None else self.aborted
                return replace(self, aborted=first)
        raise ValueError(f"no vote: {' '.join(words)}")

    def judge(self, status: int, ranks: int = 0) -> int:
        """Give the exit status of the job.

        Parameters
        ----------
        status : int
            The launcher's, 128 + n if signal n ended it.
        ranks : int, optional
            How many the launcher has started, with spares; 0 if that is not known.

        Returns
        -------
        int
            The first of these that there is: 75 if a recovery has timed out;
            the status of an abort; the launcher's, if a program gave it (not
            0, nor 128 to 192) and `accounts_for` is false; the largest status
            of the members of each group's last world, with a 1 for each group
            that is `silent` and each process that `closed` and said nothing
            since; the launcher's.
        """
        if self.timed_out:
            return TRY_AGAIN
        if self.aborted is not None:
            return self.aborted
        if _is_of_a_program(status) and not self.accounts_for(ranks):
            return status
        said = [status for _, status in self.last.values()]
        said += [one.status for one in self.left if one.epoch in (-1, self._epoch(one.group))]
        said += [1 for _ in (*self.silent, *self.closed)]
        return max(said, default=status)

    def accounts_for(self, ranks: int) -> bool:
        """Tell whether the end of every process is known, but of those lost.

        All have begun in groups, and some went on without others.  All
        processes that the last world of each group had left, spares too, have
        said with which status they end.

        Parameters
        ----------
        ranks : int
            How many the launcher has started.

        Returns
        -------
        bool
            If not, any status of the launcher may be that of a process that
            was needed.
        """
        groups = self.begun | {one.group for one in self.left}
        tallies = [self._tally(group) for group in groups]
        went_on = any(one.epoch > 0 for one in self.left)
        return went_on and None not in tallies and sum(filter(None, tallies)) == ranks

    def _epoch(self, group: int) -> int:
        """Give the last epoch of which a process of a group has said its end; -1 if none."""
        return max((one.epoch for one in self.left if one.group == group), default=-1)

    def _tally(self, group: int) -> int | None:
        """Count a group's processes; None unless all that were left reported."""
        of = [one for one in self.left if one.group == group]
        epoch = self._epoch(group)
        final = [one for one in of if one.epoch == epoch]
        firsts = {one.first for one in of} - {0}
        lasts = {one.last for one in final}
        if epoch < self.last.get(group, (0, 0))[0] or not len(firsts) == len(lasts) == 1:
            return None
        final += [one for one in of if one.epoch < 0 and one.last in lasts]
        return firsts.pop() if len(final) == lasts.pop() else None

    @property
    def silent(self) -> frozenset[int]:
        """Groups that have begun, and of which all ranks seem to be dead.

        One that was mixed with others may be a node that those have lost; they say
        how it ended.
        """
        return self.begun - self.last.keys() - (self.mixed if self.last else frozenset())

    def silence(self, status: int, ranks: int = 0) -> str | None:
        """Name the silence that makes a failure of the job, if there is one.

        Parameters
        ----------
        status : int
            The launcher's.
        ranks : int, optional
            See `judge`.

        Returns
        -------
        str or None
            The silent, in words: a group of which all members seem to be dead,
            or members that died when no other could go on for them.
        """
        if self.timed_out or self.aborted is not None:
            return None
        if _is_of_a_program(status) and not self.accounts_for(ranks):
            return None
        if self.silent:
            who = f"the group of {named(tuple(sorted(self.silent)))}" if self.last else "the job"
            return f"{who} had begun, and nobody is left to say how it ended"
        if self.closed:
            who = named(tuple(sorted(int(mark.partition(".")[0]) for mark in self.closed)))
            return f"{who} ended without a word after all had closed their communicator"
        return None


def _is_of_a_program(status: int) -> bool:
    """Tell whether a launcher's status is that of a failure of a program."""
    return status != 0 and status not in _SIGNALS


def _place(text: str) -> tuple[int, int]:
    """Read the group and the epoch of a speaker."""
    group, colon, epoch = text.rpartition(":")
    found = int(group) if colon else 0, int(epoch)
    if min(found) < 0:
        raise ValueError(f"no vote: {text}")
    return found


def _parting(place: str, numbers: Sequence[str]) -> Parting:
    """Read how a process has ended."""
    group, _, epoch = place.partition(":")
    found = _place(f"{group}:0" if epoch == "waits" else place)[0]
    first, last, status = (int(number) for number in numbers)
    if min(first, last - 1, status) < 0:
        raise ValueError(f"no vote: left {place} {' '.join(numbers)}")
    return Parting(found, -1 if epoch == "waits" else int(epoch), first, last, status)


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


class ExitReportListener:
    """Hears votes, in a thread, until it is closed; see `open_poll`.

    Parameters
    ----------
    here : bool, optional
        Whether all ranks are on this machine: then nobody else can call.

    Attributes
    ----------
    votes : ExitReports
        Reports of all processes so far.
    environment : dict of str to str
        Tells the ranks where to report.
    """

    def __init__(self, *, here: bool = False) -> None:
        self.votes = ExitReports()
        self._server = socket.create_server((_LOOP if here else "", 0), backlog=1024)
        self._server.setblocking(False)
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._token = secrets.token_hex(16)
        port = self._server.getsockname()[1]
        named = [_LOOP] if here else own_addresses()
        self.environment = {VARIABLE: f"{','.join(named)}:{port}:{self._token}"}
        self._callers: dict[socket.socket, _Caller] = {}
        self._leavers: dict[socket.socket, _Leaver] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._child: subprocess.Popen[bytes] | None = None
        self._end_s, self._means = float("inf"), signal.SIGTERM
        self._look_s, self._blind = float("inf"), 0
        self._over = False
        self._thread = threading.Thread(target=self._listen, name="closeranks poll", daemon=True)
        self._thread.start()

    def attach(self, child: subprocess.Popen[bytes], *, starts_all: bool = False) -> None:
        """Name the process to end where a rank asks for the end of the job.

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
        self._wake_sender.send(b"\0")

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
            See `ExitReports.judge`.
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
        self._wake_sender.send(b"\0")
        self._thread.join()
        self._selector.close()
        own = (self._server, self._wake_receiver, self._wake_sender)
        for one in (*self._callers, *self._leavers, *own):
            one.close()

    def _listen(self) -> None:
        while not self._over:
            for key, _ in self._selector.select(self._next_s()):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found is self._wake_receiver:
                    found.recv(16)
                elif found is self._server:
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
            caller, _ = self._server.accept()
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
    """Words of a caller so far, and the end of the wait for more."""

    def __init__(self, until_s: float) -> None:
        self.text, self.until_s = b"", until_s


class _Leaver:
    """A process that has said where it was, and says its exit status when it ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.text = words, b""


@contextmanager
def open_poll(*, here: bool = False) -> Iterator[ExitReportListener]:
    """Hear votes for as long as a job runs.

    Parameters
    ----------
    here : bool, optional
        Whether all ranks are on this machine.

    Yields
    ------
    ExitReportListener
        Closed at the end.
    """
    poll = ExitReportListener(here=here)
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
