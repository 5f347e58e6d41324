"""The few Linux calls that make a lab: unshare, setns, mount, prctl.

Python has them from 3.12 on or not at all, so they are called through
ctypes.  Nothing here knows what a lab is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

MOUNT, UTS, IPC, USER, PID, NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_SET_DEATH_SIGNAL, _SET_NAME = 1, 15
_KILL = 9

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p,
]  # fmt: skip


def _checked(result: int, call: str) -> None:
    """Raise what the C library reports."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave some of the namespaces shared with other processes.

    Parameters
    ----------
    flags : int
        Sum of `MOUNT`, `UTS`, ...; with `PID` the next child is the first
        process of the new namespace.

    Raises
    ------
    OSError
        If the kernel refuses.
    """
    _checked(_libc.unshare(flags), "unshare")


def become_root() -> None:
    """Enter a user namespace in which this user is the superuser.

    Raises
    ------
    OSError
        If the kernel or its settings forbid user namespaces.
    """
    user, group = os.geteuid(), os.getegid()
    unshare(USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Move the calling thread into the network of another process for a while.

    Sockets keep the network in which they were made, so one process can
    hold sockets of many nodes.

    Parameters
    ----------
    pid : int
        The process.

    Returns
    -------
    context manager
        Inside it, the thread is in that network.

    Raises
    ------
    OSError
        If the process is gone or the kernel refuses.
    """
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _checked(_libc.setns(other, NET), "setns")
        finally:
            os.close(other)
        try:
            yield
        finally:
            _checked(_libc.setns(own, NET), "setns")
    finally:
        os.close(own)


def die_with_parent(number: int = _KILL) -> None:
    """Have the kernel end this process when its parent's thread ends.

    Parameters
    ----------
    number : int, optional
        The signal that does; it is kept by what this process becomes.
    """
    _checked(_libc.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0), "prctl")


def rename_process(name: str) -> None:
    """Change what ``ps`` and ``/proc/PID/comm`` call this process.

    Parameters
    ----------
    name : str
        At most 15 characters count.
    """
    _checked(_libc.prctl(_SET_NAME, name.encode(), 0, 0, 0), "prctl")


def make_mounts_private() -> None:
    """Keep mounts made from now on to this mount namespace."""
    _checked(_libc.mount(b"none", b"/", None, _REC | _PRIVATE, None), "mount /")


def mount_fresh(kind: str, target: str, *, options: str = "") -> None:
    """Mount a new file system without a device.

    Parameters
    ----------
    kind : str
        ``tmpfs``, ``proc`` or ``sysfs``.
    target : str
        Where.
    options : str, optional
        For example ``mode=1777``.
    """
    flags = _NOSUID | _NODEV | (0 if kind == "tmpfs" else _NOEXEC)
    result = _libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode())
    _checked(result, f"mount {kind} on {target}")


def bind(source: str, target: str) -> None:
    """Show a file or folder, with all mounted below it, at a second place.

    Parameters
    ----------
    source, target : str
        Source and target; both must exist.
    """
    result = _libc.mount(source.encode(), target.encode(), None, _BIND | _REC, None)
    _checked(result, f"bind {source} on {target}")
