"""A rank dies, or fails alone, while all open a communicator: ``opening.py HOW [AT RANK]``.

HOW is "dies", "fails", "misleads" or "all fail", AT the function of `init` in which RANK
does so: who misleads dies, and the others cannot read what the library gives them then.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

from mpi4py import MPI

import closeranks as cr

WATCHDOG_S = 40


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise MemoryError("of one rank alone")


def misread() -> None:
    raise UnpicklingError("what the dead have not sent")


def strike(at: str, deed: Callable[[], None]) -> None:
    """Let a function of `init` do something first."""
    module, _, name = at.rpartition(":")
    home = importlib.import_module(f"closeranks.{module}")
    real = getattr(home, name)

    def struck(*given: Any, **named: Any) -> Any:
        deed()
        return real(*given, **named)

    setattr(home, name, struck)


def main(how: str, at: str = "", who: str = "1") -> None:
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    rank = MPI.COMM_WORLD.rank
    if rank == int(who) and at:
        strike(at, fail if how == "fails" else die)
    elif how == "misleads":
        strike(at, misread)
    spares = "CLOSERANKS_SPARES" in os.environ
    tuning = "nowhere.json" if how == "all fail" else None
    try:
        cr.init(on_failure="replace" if spares else "shrink", tuning=tuning)
    except (cr.PeerLost, cr.Revoked, cr.UsageError, MemoryError) as error:
        sys.stdout.write(f"rank {rank}: {type(error).__name__} {error}\n")
        sys.stdout.flush()
        raise
    sys.stdout.write(f"rank {rank}: opened\n")


main(*sys.argv[1:])
