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
#: Most exit notices that one process can wait for, ``FUTEX_WAITV_MAX``.
MOST: Final = 128
#: Bits of a lock's word (``linux/futex.h``): it has waiters, and its owner has ended.
_WAITERS: Final = 0x80000000
_OWNER_DIED: Final = 0x40000000
#: ``PTHREAD_PROCESS_SHARED`` and ``PTHREAD_MUTEX_ROBUST``.
_SHARED: Final = 1
_ROBUST: Final = 1
#: ``FUTEX2_SIZE_U32``; the number of `futex_waitv` is the same on all processors.
_OF_32_BITS: Final = 2
_FUTEX_WAITV: Final = 449


class _Waiter(Structure):
    """``struct futex_waitv``: expected value of a word, and its address."""

    _fields_ = (
        ("value", c_uint64),
        ("address", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    )


class ExitNotice:
    """The exit notice of this process: a lock for each watcher.

    Parameters
    ----------
    lines : array of uint8, shape (watchers, LINE)
        Node memory, zeros at first, at a multiple of `LINE`.  It has to stay
        mapped until `withdraw` is true, so this object is kept until then.
    """

    def __init__(self, lines: NDArray[np.uint8]) -> None:
        self._lines = lines
        self._signed: list[int] = []

    def sign(self) -> None:
        """Take the locks, which the kernel marks when this process ends.

        Local.  Does nothing outside of the first thread: the process may outlive
        another thread.  Without locks peers notice the end a little later.

        Raises
        ------
        OSError
            If the system has no robust locks.
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
            _word(line).value |= _WAITERS  # no other writer: a watcher takes no lock

    def withdraw(self) -> bool:
        """Release the locks; `ended_processes` of its watchers goes on without it.

        Local; harmless twice.

        Returns
        -------
        bool
            False if another thread has signed it: then it stays until the end.
        """
        if self._signed and threading.get_native_id() != os.getpid():
            return False
        while self._signed:
            status = CDLL(None).pthread_mutex_unlock(c_void_p(self._signed[-1]))
            if status != errno.EPERM:  # a signal came between this and the other line
                _check(status)
            self._signed.pop()
        return True


def ended_processes(lines: Sequence[NDArray[np.uint8]]) -> Iterator[list[int]]:
    """Wait for processes to begin to end.

    Local.

    Parameters
    ----------
    lines : sequence of arrays of uint8, shape (LINE,)
        The lock for this process of at most `MOST` exit notices; each lock has one
        watcher.

    Yields
    ------
    list of int
        Places in ``lines`` of processes that have begun to end, each once; until
        no signed notice is left.

    Raises
    ------
    OSError
        If the system cannot wait for several locks at once (Linux 5.16).
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
    """Sleep until one of some words has changed; may wake too early."""
    library, listed = CDLL(None, use_errno=True), (_Waiter * len(waiters))(*waiters)
    status = library.syscall(_FUTEX_WAITV, listed, len(waiters), 0, None, 0)
    if status < 0 and get_errno() not in (errno.EAGAIN, errno.EINTR):  # a change; a signal
        raise OSError(get_errno(), os.strerror(get_errno()))


def _address(line: NDArray[np.uint8]) -> int:
    return int(line.ctypes.data)


def _word(line: NDArray[np.uint8]) -> c_uint32:
    return c_uint32.from_address(_address(line))


def _check(status: int) -> None:
    """Raise the error that a function of the C library returned."""
    if status:
        raise OSError(status, os.strerror(status))


#: Stands for the handle of a process that has ended.
_ENDED: Final = -1
#: How long peers may still receive messages of a process that begins to end, in seconds. A
#: process may die right after a call; its death must not end that call for its peers.
_DRAIN_S: Final = 0.005
#: Number of the system call, the same on all processors.
_PIDFD_OPEN: Final = 434


class _Identity(NamedTuple):
    """PID namespace, number, and name of a process; whether it leads a group."""

    namespace: str
    pid: int
    leads_group: bool
    name: pmix.Name


class _Peer(NamedTuple):
    """A process of this node, its group if it leads one, and its end flag.

    A process sets its end flag before it ends in good order: that is no death.
    """

    name: pmix.Name
    group: int | None
    end_flag: NDArray[np.uint8]


class Peers:
    """The processes that this one watches, and that watch it.

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

    def watch_node(self, node: MPI.Intracomm) -> list[int]:
        """Watch the processes of a node until this one ends.

        Collective over ``node``; warns if the system has no pidfd.  Called again for
        another communicator, it moves end flags and exit notices to new memory.

        The order of the steps:

        1. All processes exchange identities, and share memory.
        2. Each signs its exit notice there, and opens a handle of each other one.
        3. Barrier.
        4. Each withdraws exit notices that no process watches any more, and starts
           its threads.

        The Barrier: no process may begin step 4 before all have done step 2, for
        three reasons.  If a process went on and ended, its number could become
        another process's, and late peers would open a handle of that.  A thread does
        not wait for an exit notice that is still unsigned.  A peer that still reads
        the old end flag of a process would take its orderly end for a death.

        Parameters
        ----------
        node : MPI.Intracomm
            Processes that share memory; not kept.

        Returns
        -------
        list of int
            Numbers of the processes in the PID namespace of this one, by rank, its
            own included.

        Raises
        ------
        mpi4py.MPI.Exception
            If one has died meanwhile.
        """
        if node.size == 1:  # no peers; perhaps no launcher has named this process
            return [os.getpid()]
        identities = self._exchange_identities(node)
        watchers = min(node.size - 1, MOST)  # the next ranks in a ring
        lines = share(node, node.size * (1 + watchers) * LINE).array.reshape(node.size, -1, LINE)
        end_flags, locks = lines[:, 0, :1], lines[:, 1:]
        self._sign_exit_notice(end_flags[node.rank], locks[node.rank])
        self._watch(identities, node.rank, end_flags)
        node.Barrier()
        self._withdraw_old_notices(identities)
        here = identities[node.rank].namespace
        self._start_threads({
            identities[place].name: locks[place, watcher] for watcher in range(watchers)
            if identities[place := node.rank - watcher - 1].namespace == here
        })  # fmt: skip
        return [peer.pid for peer in identities if peer.namespace == here]

    def _exchange_identities(self, node: MPI.Intracomm) -> list[_Identity]:
        """Tell the processes of a node about this one; collective over ``node``."""
        pid = os.getpid()
        own = _Identity(_pid_namespace(), pid, pid == os.getpgrp(), pmix.own_name())
        return allgather(node, own)

    def _sign_exit_notice(self, end_flag: NDArray[np.uint8], locks: NDArray[np.uint8]) -> None:
        """Make and sign the exit notice of this process, a lock for each watcher."""
        exit_notice = ExitNotice(locks)
        self._own.append((end_flag, exit_notice))
        with suppress(OSError):  # a libc without robust locks: the handles tell, a little later
            exit_notice.sign()

    def _watch(
        self, identities: Sequence[_Identity], rank: int, end_flags: NDArray[np.uint8]
    ) -> None:
        """Open a handle of each other process of this PID namespace."""
        own = identities[rank]
        try:
            with self._lock:
                for place, peer in enumerate(identities):
                    if peer.namespace == own.namespace and peer.pid != own.pid:
                        self._watch_peer(peer, end_flags[place])
        except OSError as error:
            warnings.warn(f"closeranks: no pidfd here ({error}): only the launcher says who has"
                          " died, Linux 5.3 would be faster", stacklevel=3)  # fmt: skip

    def _watch_peer(self, peer: _Identity, end_flag: NDArray[np.uint8]) -> None:
        handle = self._handles.get(peer.name)
        if handle is None:
            try:
                handle = self._handles[peer.name] = _opened(peer.pid)
            except ProcessLookupError:  # it has ended since the exchange, unreported
                self._handles[peer.name] = _ENDED
                pmix.announce(peer.name, widely=False)
                return
            self._ends.register(handle, select.EPOLLIN)
        elif handle not in self._watched:
            return  # it has ended since the exchange
        group = peer.pid if peer.leads_group else None
        self._watched[handle] = _Peer(peer.name, group, end_flag)

    def _withdraw_old_notices(self, identities: Sequence[_Identity]) -> None:
        """Withdraw all exit notices but the last, if only these processes watch."""
        if not self._watches_others({peer.name for peer in identities}):
            self._own = [old for old in self._own[:-1] if not old[1].withdraw()] + self._own[-1:]

    def _start_threads(self, exit_notices: Mapping[pmix.Name, NDArray[np.uint8]]) -> None:
        """Start a thread for these exit notices, and once the thread for handles."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._wait_for_handles, name="closeranks peers", daemon=True
            )
            self._thread.start()
        with suppress(RuntimeError):  # the user's limit of threads: as without exit notices
            threading.Thread(
                target=self._wait_for_notices,
                args=[exit_notices],
                name="closeranks exit notices",
                daemon=True,
            ).start()

    def _watches_others(self, names: set[pmix.Name]) -> bool:
        """Tell whether another process than these is watched: it watches this one."""
        with self._lock:
            return any(peer.name not in names and handle not in self._told
                       for handle, peer in self._watched.items())  # fmt: skip

    def _wait_for_notices(self, exit_notices: Mapping[pmix.Name, NDArray[np.uint8]]) -> None:
        """Sleep until a process begins to end, and tell; until all of them have."""
        names = list(exit_notices)
        with suppress(OSError):  # no such call: `_wait_for_handles` tells, milliseconds later
            for places in ended_processes(list(exit_notices.values())):
                time.sleep(_DRAIN_S)
                with prompt_switches(), self._lock:
                    for place in places:
                        self._tell(self._handles.get(names[place], _ENDED))

    def _wait_for_handles(self) -> None:
        """Sleep until a process has ended, and tell unless told already; for ever."""
        while True:
            for handle, _ in self._ends.poll():
                with self._lock:
                    self._tell(handle)
                    self._told.discard(handle)
                    self._handles[self._watched.pop(handle).name] = _ENDED
                    self._ends.unregister(handle)
                    os.close(handle)

    def _tell(self, handle: int) -> None:
        """Tell the library once that a process has died; not if its end flag is set."""
        if handle in self._told or handle not in self._watched:
            return
        peer = self._watched[handle]
        if not (self._over or peer.end_flag):
            pmix.announce(peer.name, widely=self._is_first(but=handle))
            self._end_children(peer)
        self._told.add(handle)
        self._news.set()

    def doze(self, seconds: float) -> bool:
        """Sleep until a watched process ends, or for some seconds.

        Local; for one thread.

        Parameters
        ----------
        seconds : float
            Longest sleep.

        Returns
        -------
        bool
            Whether a process has ended.
        """
        has_ended = self._news.wait(seconds)
        if has_ended:  # a timed-out wait must not clear news of this moment
            self._news.clear()
        return has_ended

    def wait_for_ending(self, limit_s: float) -> None:
        """Wait until processes that have begun to end have released their resources.

        Local; for a replacement, which needs the memory and the devices of the
        process that had its seat.

        Parameters
        ----------
        limit_s : float
            Deadline of the recovery, seconds: the wait for a process that the kernel
            cannot end takes half of it.
        """
        wait(lambda: not self._told, deadline=Deadline(limit_s / 2), polite=True)

    def report_dead(self, dead: Iterable[int]) -> None:
        """Tell all nodes which ranks count as dead here, if first of its node.

        Local.  A living rank that has only lost a connection hears it too: its MPI
        library aborts it.

        Parameters
        ----------
        dead : iterable of int
            Ranks in ``MPI_COMM_WORLD``; reported again until PMIx has taken it.
        """
        with self._lock:
            new = set(dead) - self._spread if self._is_first() else set()
        for rank in new:
            if pmix.announce(pmix.own_name()._replace(rank=rank), widely=True):
                self._spread.add(rank)

    def _end_children(self, dead: _Peer) -> None:
        """End the children of a dead process, which hold the launcher's pipes."""
        if dead.group is not None and self._is_first(but=self._handles[dead.name]):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(dead.group, signal.SIGKILL)

    def _is_first(self, but: int = _ENDED) -> bool:
        """Whether this process speaks for its node; ``but`` is one that ends."""
        here = [peer.name for handle, peer in self._watched.items()
                if handle not in {*self._told, but} and not peer.end_flag]  # fmt: skip
        return pmix.own_name() <= min(here, default=pmix.own_name())

    def end_in_order(self) -> None:
        """Set the end flags of this process; report no deaths from now on.

        Local; called when the interpreter exits, before MPI is finalized.
        """
        with self._lock:
            self._over = True
        if not ulfm.leaves():
            for end_flag, exit_notice in self._own:
                end_flag[:] = 1
                exit_notice.withdraw()


def _opened(pid: int) -> int:
    """Open a pidfd; Pythons built on old systems lack `os.pidfd_open`."""
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


def _pid_namespace() -> str:
    """Name the PID namespace of this process, unique on its machine."""
    return str(Path("/proc/self/ns/pid").readlink())


@cache
def peers() -> Peers:
    """Give the peers of this process.  Local."""
    made = Peers()
    before_finalize(made.end_in_order)
    return made
