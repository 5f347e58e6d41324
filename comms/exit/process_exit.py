"""The exit status of this process, said by the system when it ends."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any, Final

#: The streams to say it on: they must live as long as the process.
_STREAMS: Final[list[Any]] = []


def say_at_exit(peer: socket.socket) -> bool:
    """Let one byte, the exit status, be sent to a peer when this process ends.

    Local.  Python tells nobody what ``sys.exit`` was given: its own functions for
    the end of a process run before, and know nothing of it.  The GNU C library
    calls ``on_exit`` functions with the status and a word of one's own, which are
    the arguments of ``fputc``.  Nothing is sent if the process is killed, or ends
    by ``os._exit``, or in a library that has no such function.

    Parameters
    ----------
    peer : socket
        Is closed here; its peer sees the end when the process has ended.

    Returns
    -------
    bool
        Whether it will be said.
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
    os.register_at_fork(after_in_child=partial(_hush, descriptor))
    library.setbuf(stream, None)  # else it would be sent when all streams are flushed
    return bool(on_exit(ctypes.cast(write, ctypes.c_void_p), stream) == 0)


def _hush(descriptor: int) -> None:
    """Let a process that was forked say nothing: its end is not that of its parent."""
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)
