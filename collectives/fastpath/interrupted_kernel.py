"""A kernel whose caller was interrupted: it goes on without them.

The handler of a signal may raise in a call that waits for the others: Ctrl-C,
or an alarm of the program's own.  The others know nothing of it, and the
memory of a node serves one call after the other: so the call keeps its turn,
and whoever looks next ends it, on the arrays that it was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from closeranks.collectives.fastpath.kernel_watch import watch
from closeranks.collectives.shm.segment import STARTED
from closeranks.collectives.shm.segment_layout import START
from closeranks.comms.mpi.mpi_lock import in_turn

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World


class Interrupted:
    """One call that a kernel has begun and that nobody waits for.

    Local to make.

    Parameters
    ----------
    world : World
        Whose node memory is used; owns this from now on.
    step : callable
        Runs the kernel for a moment; True once it is over.
    keeps : object
        Stays alive until then: the arrays of the call.
    """

    def __init__(self, world: World, step: Callable[[], bool], keeps: object) -> None:
        self._memory, self._lock = world.node_memory, threading.RLock()
        self._began = int(self._memory.state[START])
        self._step: Callable[[], bool] | None = step
        self._keeps: object = keeps
        world.own(self)
        watcher = watch()
        watcher.keep(self._memory)
        self._memory.enter(self, STARTED)
        watcher.wake()

    def advance(self) -> bool:
        """Let it go on for a moment; True once it is over.  Local; any thread.

        Whatever line another signal comes between, the kernel ends once and the turn
        is left once.
        """
        return bool(in_turn(self._lock, self._go_on))

    def _go_on(self) -> bool:
        turns = self._memory.turns
        if self._step is None or not turns or turns[0][0] is not self:
            return False
        if self._memory.state[START] == self._began and not self._step():
            return False
        self._memory.leave()
        self._step = self._keeps = None
        return True

    def close(self) -> None:
        """Run no kernel any more.  Local."""
        with self._lock:
            self._step = self._keeps = None

    revoke = close
