"""How starts are heard of that mpi4py makes, by `MPI.Prequest.Startall` say.

They call the library with a handle, and nothing of ours.  So a persistent
operation that the library does not serve has the handle of a synchronous
message to its own process.  Its start is that of the operation, the message
says which and in what order, and whoever waits for the handle waits until the
message is received, which is at the end of the operation.

Messages are looked for before each call of a communicator that has such
operations, since all ranks begin what they do in one order, and by a thread,
for a program that does nothing else but wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from mpi4py import MPI

from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.mpi.mpi_lock import TURN, in_turn
from closeranks.comms.mpi.predefined import SELF

if TYPE_CHECKING:
    from closeranks.collectives.dispatch.startable_request import Startable

#: Seconds between two looks of the thread: at first and while starts are heard of, then
#: twice as long each time, and at most.
_PAUSE_S: Final = 1e-4
_LONGEST_S: Final = 5e-3
_NOTHING: Final = [bytearray(), 0, MPI.BYTE]


class Starts:
    """The messages of persistent operations of this process to itself.

    Made by `starts`; any thread may call any method.
    """

    def __init__(self) -> None:
        self._comm = SELF.Dup()
        self._known: WeakValueDictionary[int, Startable] = WeakValueDictionary()
        self._free: list[int] = []
        self._last = -1
        self._bell, self._stopping = threading.Event(), False
        self._thread: threading.Thread | None = None

    def prepare(self, operation: Startable) -> tuple[int, MPI.Request]:
        """Make the handle of an operation.  Local.

        Parameters
        ----------
        operation : Startable
            Told when mpi4py has started it.

        Returns
        -------
        tag : int
            Of its messages.
        request : MPI.Request
            Freed by the operation.
        """
        if self._free:
            tag = self._free.pop()
        else:
            tag = self._last = self._last + 1
        request = self._comm.Ssend_init(_NOTHING, 0, tag)
        self._known[tag] = operation
        if MPI.Query_thread() >= MPI.THREAD_MULTIPLE:
            self._wake()
        return tag, request

    def keep(self, tag: int, operation: Startable) -> None:
        """Tell another object of the starts from now on.  Local."""
        self._known[tag] = operation

    def forget(self, tag: int) -> None:
        """Let a tag be another operation's; its handle is free.  Local."""
        self._known.pop(tag, None)
        self._free.append(tag)

    def start(self, operation: Startable, tag: int) -> MPI.Message:
        """Start the handle of an operation that is started by us.  Local.

        Parameters
        ----------
        operation : Startable
            Whose; not under way.
        tag : int
            Of its messages.

        Returns
        -------
        MPI.Message
            To be received at the end.
        """
        with TURN:  # or the thread hears of it
            MPI.Prequest.Start(operation)
            return self._comm.Mprobe(0, tag)

    def look(self) -> bool:
        """Begin what mpi4py has started meanwhile, in the same order.  Local.

        Returns
        -------
        bool
            Whether there was anything.
        """
        heard, status = False, MPI.Status()
        with TURN:
            while message := self._comm.Improbe(0, MPI.ANY_TAG, status):
                operation = self._known.get(status.tag)
                if operation is None:
                    receive(message)  # of one that nobody has any more
                else:
                    operation.heard(message)
                heard = True
        return heard

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._stay, name="closeranks starts", daemon=True
            )
            self._thread.start()
        self._bell.set()

    def _stay(self) -> None:
        """Look, the more seldom the longer there was nothing; sleep where there is none."""
        pause_s = _PAUSE_S
        while not self._stopping:
            if not self._known:
                self._bell.wait()
                self._bell.clear()
            news = in_turn(TURN, self._step)
            pause_s = _PAUSE_S if news else min(2 * pause_s, _LONGEST_S)
            time.sleep(pause_s)

    def _step(self) -> bool:
        """Begin and end what mpi4py starts and waits for; tells if there is any."""
        heard = self.look()
        # Copied in one step: other threads prepare operations meanwhile.
        known = [operation() for operation in self._known.valuerefs()]
        late = [one.end_late() for one in known if one is not None]
        return heard or any(late)

    def stop(self) -> None:
        """End the thread.  Local; called when the interpreter exits."""
        self._stopping = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)


def receive(message: MPI.Message) -> None:
    """Let a wait for an operation end.

    Parameters
    ----------
    message : MPI.Message
        Of its start.
    """
    message.Recv(_NOTHING)


def listening(call: Callable[..., None]) -> Callable[..., None]:
    """Return a call before which starts are looked for.

    Parameters
    ----------
    call : callable
        Serves a blocking call.

    Returns
    -------
    callable
        Takes the same.
    """
    look = starts().look

    def served(*arguments: object) -> None:
        look()
        call(*arguments)

    return served


@cache
def starts() -> Starts:
    """Return what hears of this process's starts.  Local; any thread."""
    made = Starts()
    before_finalize(made.stop)
    return made
