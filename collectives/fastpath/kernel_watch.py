"""The watch over kernels that were started and that nobody waits for.

A kernel goes on where its rank waits for it.  While the program does something
else the others would wait for it, for ever if it is they whom it waits for.
So a thread looks, every millisecond at first, and lets what it finds twice go
on, and what was started after it.  Nobody wakes it as long as it is awake: a
program that starts and waits at once pays for a look now and then.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from closeranks.collectives.shm.segment import STARTED
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.registry import Registry
from closeranks.comms.wait import longer

if TYPE_CHECKING:
    from closeranks.collectives.shm.segment import NodeMemory

#: Seconds between two looks, and looks in vain before the thread sleeps.
_PAUSE_S: Final = 1e-3
_IN_VAIN: Final = 1000

#: The turn of each memory, by its identity, where it is that of a start.
_Found: TypeAlias = "dict[int, tuple[Any, int] | None]"


class Watch:
    """A thread that lets started kernels go on.

    Made by `watch`; any thread may call any method.

    Attributes
    ----------
    asleep : bool
        Whether it has to be woken.
    """

    def __init__(self) -> None:
        self.asleep = True
        self._memories: Registry[NodeMemory] = Registry()
        self._bell, self._stopping = threading.Event(), False
        self._thread: threading.Thread | None = None

    def keep(self, memory: NodeMemory) -> None:
        """Look after a node's memory as long as it lives.  Local."""
        self._memories.add(memory)

    def wake(self) -> None:
        """Begin to look.  Local; called after a start, where it is asleep."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="closeranks watch", daemon=True)
            self._thread.start()
        self._bell.set()

    def stop(self) -> None:
        """End the thread.  Local; called when the interpreter exits."""
        self._stopping = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _look(self) -> None:
        seen: _Found = {}
        vain, pause_s = 0, _PAUSE_S
        while not self._stopping:
            found, again = self._look_once(seen)
            vain = 0 if any(found.values()) else vain + 1
            pause_s = longer(pause_s) if again else _PAUSE_S
            seen = found
            if vain > _IN_VAIN:  # whoever has started since it said so has rung
                self._bell.wait()
                self._bell.clear()
                vain = 0
            self.asleep = vain == _IN_VAIN
            time.sleep(pause_s)

    def _look_once(self, seen: _Found) -> tuple[_Found, bool]:
        """Let go on what was there before; gives what is there, and if it was."""
        found: _Found = {}
        again = False
        for memory in self._memories:
            turn = found[id(memory)] = _started(memory)
            if turn and seen.get(id(memory)) is turn:
                again = True
                while turn and turn[0].advance():
                    turn = _started(memory)
        return found, again


def _started(memory: NodeMemory) -> tuple[Any, int] | None:
    """Give the turn of a memory if it is that of a kernel which was started."""
    try:
        turn = memory.turns[0]
    except IndexError:
        return None
    return turn if turn[1] == STARTED else None


@cache
def watch() -> Watch:
    """Return this process's watch.  Local; any thread."""
    made = Watch()
    before_finalize(made.stop)
    return made
