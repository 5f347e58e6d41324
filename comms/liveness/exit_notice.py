"""A process's will, which the kernel opens when the process begins to end.

A process that is killed gives its memory back first, which takes milliseconds,
or more, and only then do the system (pidfd) and its closed sockets say that it
has ended.  Before all that the kernel sees to the locks of each thread: it
marks those that are held, and wakes one who waits for each (robust futexes,
`exit_robust_list` of Linux' ``kernel/futex``).  So the first thread of a
process holds one for each heir, in node memory, until the end.  Where they are
marked that thread has run its last step, and the others of its process have
the same signal before theirs.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from ctypes import CDLL, Structure, c_char, c_uint32, c_uint64, c_void_p, get_errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Bytes of a lock: a cache line, of which it takes 40 to 48.
LINE: Final = 64
#: How many wills one process can wait for, ``FUTEX_WAITV_MAX``.
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


class Will:
    """The will of this process.

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
        What each of at most `MOST` wills has for this process, and no other.

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
