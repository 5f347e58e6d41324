"""What a process has written that is in no file yet, before it is killed.

Who leaves the others is killed, for that counts as a death
(`closeranks.comms.mpi.ulfm`), and the end of an interpreter, which would write
it, does not come.
"""

from __future__ import annotations

import ctypes
import gc
import io
import logging
import os
import signal
import subprocess
from contextlib import suppress
from typing import Final

#: How long it may take: the others wait for the death, and nobody may read a pipe.
_LIMIT_S: Final = 5.0
#: What all files of Python come of; `io.IOBase` itself asks more.
_FILE: Final = io.FileIO.__mro__[-2]


def let_out() -> None:
    """Write what is in the buffers of logs and files, of Python and of the C library.

    Local; for a process that is about to end.  Where it takes too long it is
    ended, with what it has started if it leads a group.  What only closing a file
    writes, such as the end of a zip file, is lost.
    """
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S + 1)
    _call_time()
    with suppress(Exception):  # of a handler of the program's own
        logging.shutdown()
    for one in gc.get_objects():
        if issubclass(type(one), _FILE):
            with suppress(Exception):  # closed, or whatever a program's own kind may raise
                one.flush()
    ctypes.CDLL(None).fflush(None)


def _call_time() -> None:
    """Let somebody else end the group of this process if it takes too long.

    A process of the group, which ends with it.  An alarm of the system's would
    end this process alone, and a handler of Python's might never run.
    """
    if os.getpgrp() != os.getpid():
        return
    ends, nowhere = f"sleep {_LIMIT_S:g}; kill -9 -{os.getpid()}", subprocess.DEVNULL
    with suppress(Exception):  # then the alarm is all that is left
        subprocess.Popen(["/bin/sh", "-c", ends], stdin=nowhere, stdout=nowhere, stderr=nowhere)
