"""The other processes of this node, watched for their end.

When a process ends, this module tells the MPI library.  By itself the library
waits for its launcher.  Open MPI 5.0.11's launcher needs a core to notice a
death, and does not report deaths by ``MPI_Abort`` or ``_exit``.  The kernel
is faster.  Two threads of every process sleep there: one until a peer begins
to end (exit notices, Linux 5.16), one until it has ended (pidfd, Linux 5.3).

An exit notice is earlier than a pidfd.  A killed process gives back its memory
first, which takes milliseconds or more; only then do its pidfd and its closed
sockets show its end.  Before all that, the kernel handles the robust futexes
of each thread (`exit_robust_list` in ``kernel/futex``): it marks each lock
that is held, and wakes one waiter of each.  So the first thread of a process
holds one lock for each watcher, in node memory, until the end.  A marked lock
means that this thread has run its last step.  All other threads of the process
have the same signal pending before their next step.

The threads need Python's lock.  If a program keeps it inside MPI, as mpi4py
does in the first lower-case call of a communicator, only the launcher tells.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import CDLL, Structure, c_char, c_uint32, c_uint64, c_void_p, get_errno
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from closeranks.comms.liveness.recovery_allgather import allgather
from closeranks.comms.mpi import pmix, ulfm
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.shm.shared_file import share
from closeranks.comms.wait import Deadline, prompt_switches, wait

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray


#: Bytes of a lock: a cache line, of which it takes 40 to 48.
LINE: Final = 64
#: How many exit notices one process can wait for, ``FUTEX_WAITV_MAX``.
MOST: Final = 128
#: Bits of a lock's word (``linux/futex.h``): somebody waits, and its owner has ended.
_WAITERS: Final = 0x80000000
_OWNER_DIED: Final = 0x40000000
#: ``PTHREAD_PROCESS_SHARED`` and ``PTHREAD_MUTEX_ROBUST``.
_SHARED: Final = 1
_ROBUST: Final = 1
#: ``FUTEX2_SIZE_U32``; the number of `futex_waitv` is the same on all processors.
_OF_32_BITS: Final = 2
_FUTEX_WAITV: Final = 449


class _Waiter(Structure):
    """``struct futex_waitv``: what a word is while one waits, and where it lies."""

    _fields_ = (
        ("value", c_uint64),
        ("address", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    )


class ExitNotice:
    """The exit notice of this process.

    Parameters
    ----------
    lines : array of uint8, shape (heirs, LINE)
        Node memory, zeros at first, at a multiple of `LINE`.  It has to stay
        mapped until `withdraw` is true, so this object is kept until then.
    """

    def __init__(self, lines: NDArray[np.uint8]) -> None:
        self._lines = lines
        self._signed: list[int] = []

    def sign(self) -> None:
        """Have the kernel open it when this process ends.

        Local.  Does nothing where this is not the process's first thread, which
        another one may outlive: that such a process ends is only heard later.

        Raises
        ------
        OSError
            If the system has no such locks.
        """
        if threading.get_native_id() != os.getpid():
            return
        library, kind = CDLL(None), (c_char * LINE)()
        _check(library.pthread_mutexattr_init(kind))
        _check(library.pthread_mutexattr_setpshared(kind, _SHARED))
        _check(library.pthread_mutexattr_setrobust(kind, _ROBUST))
        for line in self._lines:
            lock = c_void_p(_address(line))
            _check(library.pthread_mutex_init(lock, kind))
            self._signed.append(_address(line))  # before: a signal may come between
            _check(library.pthread_mutex_lock(lock))
            _word(line).value |= _WAITERS  # nobody else writes: an heir does not take it

    def withdraw(self) -> bool:
        """Take it back; `opened` of its heirs goes on without it.

        Local; harmless twice.

        Returns
        -------
        bool
            False where another thread has signed it: then it holds until the end.
        """
        if self._signed and threading.get_native_id() != os.getpid():
            return False
        while self._signed:
            status = CDLL(None).pthread_mutex_unlock(c_void_p(self._signed[-1]))
            if status != errno.EPERM:  # a signal came between this and the other line
                _check(status)
            self._signed.pop()
        return True


def opened(lines: Sequence[NDArray[np.uint8]]) -> Iterator[list[int]]:
    """Wait for the ends of processes.

    Local.

    Parameters
    ----------
    lines : sequence of arrays of uint8, shape (LINE,)
        What each of at most `MOST` exit notices has for this process, and no
        other.

    Yields
    ------
    list of int
        The places in ``lines`` of those that have been opened meanwhile, each
        once; until none is left that is signed.

    Raises
    ------
    OSError
        If the system cannot wait for several at once (Linux 5.16).
    """
    left = dict(enumerate(lines))
    while True:
        words = {place: _word(line).value for place, line in left.items()}
        left = {
            place: left[place] for place, word in words.items() if word and not word & _OWNER_DIED
        }
        if over := [place for place, word in words.items() if word & _OWNER_DIED]:
            yield over
        if not left:
            return
        _wait([_Waiter(words[place], _address(left[place]), _OF_32_BITS) for place in left])


def _wait(waiters: list[_Waiter]) -> None:
    """Sleep until one of some words has changed, or a little less."""
    library, listed = CDLL(None, use_errno=True), (_Waiter * len(waiters))(*waiters)
    status = library.syscall(_FUTEX_WAITV, listed, len(waiters), 0, None, 0)
    if status < 0 and get_errno() not in (errno.EAGAIN, errno.EINTR):  # changed; a signal
        raise OSError(get_errno(), os.strerror(get_errno()))


def _address(line: NDArray[np.uint8]) -> int:
    return int(line.ctypes.data)


def _word(line: NDArray[np.uint8]) -> c_uint32:
    return c_uint32.from_address(_address(line))


def _check(status: int) -> None:
    """Raise what a function of the C library has said."""
    if status:
        raise OSError(status, os.strerror(status))


#: Stands for the handle of a process that has ended.
_ENDED: Final = -1
#: How long others may still take what one who begins to end has sent, in seconds: else who
#: dies right after a call would end it for those who are still in it.
_DRAIN_S: Final = 0.005
#: Number of the system call, the same on all processors.
_PIDFD_OPEN: Final = 434


class _Said(NamedTuple):
    """What a process says of itself."""

    numbering: str
    pid: int
    leads: bool
    name: pmix.Name


class _Peer(NamedTuple):
    """A process of this node, its group if it leads one, and where it says goodbye."""

    name: pmix.Name
    group: int | None
    goodbye: NDArray[np.uint8]


class Peers:
    """The processes that this one watches, and is watched by.

    Made by `peers`; any thread may call any method.
    """

    def __init__(self) -> None:
        self._watched: dict[int, _Peer] = {}
        self._handles: dict[pmix.Name, int] = {}
        self._told: set[int] = set()
        self._own: list[tuple[NDArray[np.uint8], ExitNotice]] = []
        self._spread: set[int] = set()
        self._ends = select.epoll()
        self._lock = threading.Lock()
        self._over = False
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, node: MPI.Intracomm) -> list[int]:
        """Watch the processes of a node until this one ends.

        Collective over ``node``; warns where the system cannot.  Where they say
        that they end as they should is made anew, for all of them.

        Parameters
        ----------
        node : MPI.Intracomm
            Processes that share memory; not kept.

        Returns
        -------
        list of int
            Those whose numbers mean here what they mean to them, by rank: its own,
            too.

        Raises
        ------
        mpi4py.MPI.Exception
            If one has died meanwhile.
        """
        pid, group = os.getpid(), os.getpgrp()
        if node.size == 1:  # nobody to watch; no launcher has named it, perhaps
            return [pid]
        here = _numbering()
        said = allgather(node, _Said(here, pid, pid == group, pmix.own_name()))
        heirs = min(node.size - 1, MOST)  # those who come next in a ring
        lines = share(node, node.size * (1 + heirs) * LINE).array.reshape(node.size, -1, LINE)
        goodbyes, locks = lines[:, 0, :1], lines[:, 1:]
        exit_notice = ExitNotice(locks[node.rank])
        self._own.append((goodbyes[node.rank], exit_notice))
        with suppress(OSError):  # a libc without such locks: the handles tell, a little later
            exit_notice.sign()
        try:
            with self._lock:
                for place, peer in enumerate(said):
                    if peer.numbering == here and peer.pid != pid:
                        self._watch(peer, goodbyes[place])
        except OSError as error:
            warnings.warn(f"closeranks: no pidfd here ({error}): only the launcher says who has"
                          " died, Linux 5.3 would be faster", stacklevel=2)  # fmt: skip
        node.Barrier()  # now nobody's number can become another process's
        if not self._watches_others({peer.name for peer in said}):
            # Nobody looks any more at where this one spoke before.
            self._own = [old for old in self._own[:-1] if not old[1].withdraw()] + self._own[-1:]
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="closeranks peers", daemon=True)
            self._thread.start()
        left = {said[place].name: locks[place, heir] for heir in range(heirs)
                if said[place := node.rank - heir - 1].numbering == here}  # fmt: skip
        with suppress(RuntimeError):  # no thread more for this user: as without exit notices
            threading.Thread(
                target=self._read, args=[left], name="closeranks exit notices", daemon=True
            ).start()
        return [peer.pid for peer in said if peer.numbering == here]

    def _watch(self, peer: _Said, goodbye: NDArray[np.uint8]) -> None:
        handle = self._handles.get(peer.name)
        if handle is None:
            try:
                handle = self._handles[peer.name] = _opened(peer.pid)
            except ProcessLookupError:  # it has ended since it spoke, and nobody has told
                self._handles[peer.name] = _ENDED
                pmix.announce(peer.name, widely=False)
                return
            self._ends.register(handle, select.EPOLLIN)
        elif handle not in self._watched:
            return  # it has ended since it spoke
        group = peer.pid if peer.leads else None
        self._watched[handle] = _Peer(peer.name, group, goodbye)

    def _watches_others(self, names: set[pmix.Name]) -> bool:
        """Tell whether any process but these is watched, and so watches this one."""
        with self._lock:
            return any(peer.name not in names and handle not in self._told
                       for handle, peer in self._watched.items())  # fmt: skip

    def _read(self, exit_notices: Mapping[pmix.Name, NDArray[np.uint8]]) -> None:
        """Sleep until somebody begins to end, and tell; until all of them have."""
        names = list(exit_notices)
        with suppress(OSError):  # the system cannot: `_look` tells, milliseconds later
            for places in opened(list(exit_notices.values())):
                time.sleep(_DRAIN_S)
                with prompt_switches(), self._lock:
                    for place in places:
                        self._tell(self._handles.get(names[place], _ENDED))

    def _look(self) -> None:
        """Sleep until somebody has ended, and tell if nobody has; for ever."""
        while True:
            for handle, _ in self._ends.poll():
                with self._lock:
                    self._tell(handle)
                    self._told.discard(handle)
                    self._handles[self._watched.pop(handle).name] = _ENDED
                    self._ends.unregister(handle)
                    os.close(handle)

    def _tell(self, handle: int) -> None:
        """Tell the library that a process has ended, once, unless it has said goodbye."""
        if handle in self._told or handle not in self._watched:
            return
        peer = self._watched[handle]
        if not (self._over or peer.goodbye):
            pmix.announce(peer.name, widely=self._is_first(but=handle))
            self._end_children(peer)
        self._told.add(handle)
        self._news.set()

    def doze(self, seconds: float) -> bool:
        """Sleep until one of them ends, or for so long.

        Local; for one thread.

        Parameters
        ----------
        seconds : float
            At most.

        Returns
        -------
        bool
            Whether one has ended.
        """
        has_ended = self._news.wait(seconds)
        if has_ended:  # else news of this very moment would be lost
            self._news.clear()
        return has_ended

    def see_off(self, limit_s: float) -> None:
        """Wait until who has begun to end has given back what it had.

        Local; for who takes a seat, and needs the memory and the devices of who sat
        there.

        Parameters
        ----------
        limit_s : float
            Deadline of the recovery, seconds: half of it is waited for a process that
            the system cannot end.
        """
        wait(lambda: not self._told, deadline=Deadline(limit_s / 2), polite=True)

    def spread(self, dead: Iterable[int]) -> None:
        """Tell all nodes who counts as dead here, if this process speaks for its node.

        Local.  Who lives, and has only lost a connection, hears it too: the MPI
        library aborts it.

        Parameters
        ----------
        dead : iterable of int
            Ranks in ``MPI_COMM_WORLD``; told until PMIx has taken it.
        """
        with self._lock:
            new = set(dead) - self._spread if self._is_first() else set()
        for rank in new:
            if pmix.announce(pmix.own_name()._replace(rank=rank), widely=True):
                self._spread.add(rank)

    def _end_children(self, dead: _Peer) -> None:
        """End what a dead process has started, and holds the launcher's pipes."""
        if dead.group is not None and self._is_first(but=self._handles[dead.name]):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(dead.group, signal.SIGKILL)

    def _is_first(self, but: int = _ENDED) -> bool:
        """Whether this process speaks for its node to the others, ``but`` one that ends."""
        here = [peer.name for handle, peer in self._watched.items()
                if handle not in {*self._told, but} and not peer.goodbye]  # fmt: skip
        return pmix.own_name() <= min(here, default=pmix.own_name())

    def part(self) -> None:
        """Say that this process ends as it should, and tell nobody's end from now on.

        Local; called when the interpreter exits, before MPI is finalized.
        """
        with self._lock:
            self._over = True
        if not ulfm.leaves():
            for goodbye, exit_notice in self._own:
                goodbye[:] = 1
                exit_notice.withdraw()


def _opened(pid: int) -> int:
    """Give a handle of a process; Pythons built on old systems have no name for it."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    handle: int = _library().syscall(_PIDFD_OPEN, pid, 0)
    if handle < 0:
        raise OSError(get_errno(), os.strerror(get_errno()))
    return handle


@cache
def _library() -> CDLL:
    """Give the C library."""
    return CDLL(None, use_errno=True)


def _numbering() -> str:
    """Name where process numbers mean what they mean here, among those of a machine."""
    return str(Path("/proc/self/ns/pid").readlink())


@cache
def peers() -> Peers:
    """Give those of this process.  Local."""
    made = Peers()
    before_finalize(made.part)
    return made
