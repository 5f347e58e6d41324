"""Worlds of communicators that were freed, for the next ones of the same ranks.

To make a world costs some milliseconds, most of them for pages of node memory.
A program that splits a communicator again and again pays for that once.  All
of these worlds are the first world's (`World.kept`), and end with it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from closeranks.collectives.arguments.native_handover import agreed_max
from closeranks.comms.exit import signal_handlers

if TYPE_CHECKING:
    from mpi4py import MPI

    from closeranks.collectives.engine.epoch_world import World

#: So many are kept: a program may have communicators of rows and of columns.
MOST: Final = 4
#: Bits of a number that a float64 holds.
_BITS: Final = 52
#: Held while a list of kept worlds changes, and never while a rank waits.
_LOCK: Final = threading.Lock()


def keep(first: World, world: World) -> World | None:
    """Keep a world that `open_world` has given, and that rests.

    Local.  All ranks of the world do so.

    Parameters
    ----------
    first : World
        That of the family.
    world : World
        Of a communicator that is being freed.

    Returns
    -------
    World or None
        One that is to be closed: the oldest, if there are too many.
    """
    with _LOCK:
        first.kept.append(world)
        return first.kept.pop(0) if len(first.kept) > MOST else None


def open_world(
    first: World, comm: MPI.Intracomm, seats: tuple[int, ...], make: Callable[[], World]
) -> World:
    """Give a world to a communicator: one that was kept, or a new one.

    Collective over ``comm``.  Threads may have kept worlds in different orders,
    so the ranks compare what each would take.

    Parameters
    ----------
    first : World
        That of the family.
    comm : MPI.Intracomm
        The communicator, for setting up.
    seats : tuple of int
        Its ranks' seats.
    make : callable
        Makes a new world; collective.

    Returns
    -------
    World
        Its communicator is ``comm``.
    """
    signal_handlers.defer_handlers()
    with _LOCK:
        fitting = (one for one in reversed(first.kept) if one.seats == seats)
        found = next((one for one in fitting if not one.revoked), None)
    name, calls = (found.name, found.calls) if found is not None else (0, 0)
    try:
        told = agreed_max(comm, [name, -name, calls, -calls, 1 + secrets.randbits(_BITS)])
    except BaseException:
        if found is not None:
            found.revoke()  # others may wait for this rank in it
        raise
    if found is not None and told[0] == -told[1]:
        with _LOCK:
            first.kept.remove(found)
        if told[2] == -told[3]:
            found.carry(comm)
            return found
        first.disown(found)
        found.drop()  # ranks have called it unequally often
    made = make()
    made.name = int(told[4])
    return made
