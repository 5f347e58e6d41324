"""Persistent requests that mpi4py can start, by `MPI.Prequest.Startall` say.

mpi4py then calls the library with a handle, and nothing of this package.  So
an operation that the library does not serve has the handle of a synchronous
message to its own process.  The start of that message is the start of the
operation.  The message says which operation it is, and in what order.  It is
received at the end of the operation, so a wait for the handle ends then.

`Starts` looks for messages before each call of a communicator that has such
operations, since all ranks begin what they do in one order.  For a program
that does nothing but wait, a thread looks for them.
"""

from __future__ import annotations

import ctypes
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final
from weakref import WeakValueDictionary

from mpi4py import MPI

from closeranks.comms.exit import forked_child
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.mpi.mpi_handle import SELF
from closeranks.comms.mpi.mpi_lock import TURN, in_turn
from closeranks.errors import UsageError

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
        self._wake_event, self._stopping = threading.Event(), False
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
        # A forked child would read its parent's connections, and wait for its threads.
        if forked_child.Process.is_child:
            return False
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
        self._wake_event.set()

    def _stay(self) -> None:
        """Look, the more seldom the longer there was nothing; sleep where there is none."""
        pause_s = _PAUSE_S
        while not self._stopping:
            if not self._known:
                self._wake_event.wait()
                self._wake_event.clear()
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
        self._wake_event.set()
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


class Startable(MPI.Prequest):
    """A persistent request of mpi4py whose operation is ours.

    Its handle is the library's own persistent operation where that serves every
    start and nothing else is to be done.  Else it is that of a message to this
    process, as the module says.
    """

    #: Of its messages, where it has any.
    _tag: int | None = None
    #: The message of the start that was begun last, until its end; taken by who ends it.
    _messages: list[MPI.Message]
    #: What a start has met that mpi4py made, until somebody hears of it.
    _met: BaseException | None = None

    def __new__(cls, *arguments: object, **named: object) -> Startable:
        """Make the object, without a handle."""
        del arguments, named
        made = MPI.Prequest.__new__(cls)
        made._messages = []
        return made

    __hash__ = object.__hash__  # mpi4py's have none

    @abstractmethod
    def start(self) -> None:
        """Start it once more."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the buffers."""

    @abstractmethod
    def _begin(self, ends: list[MPI.Message]) -> None:
        """Begin the operation, whoever has started the handle; note what ends it."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Tell whether what was begun is over, well or not; makes it go on.  Local."""

    def _take_handle(self, request: MPI.Request) -> None:
        """Have the handle of another object, which stays valid."""
        size = MPI._sizeof(request)
        ctypes.memmove(MPI._addressof(self), MPI._addressof(request), size)

    def _make_handle(self) -> None:
        """Have a handle of messages to this process.  Local."""
        self._tag, request = starts().prepare(self)
        self._take_handle(request)

    def _drop_handle(self) -> None:
        """Have none any more; nothing is under way.  Local."""
        if self._tag is None:
            self._take_handle(MPI.REQUEST_NULL)
        else:
            self._end_handle(None)
            MPI.Prequest.Free(self)
            starts().forget(self._tag)
            self._tag = None

    def _inherit_handle(self, other: Startable) -> None:
        """Have the handle of another one, which it has no more.  Local."""
        self._take_handle(other)
        other._take_handle(MPI.REQUEST_NULL)
        if self._tag is not None:
            starts().keep(self._tag, self)

    def _look(self) -> None:
        """Hear of what mpi4py has started meanwhile, this or others.  Local."""
        if self._tag is not None:
            starts().look()

    def _start_handle(self) -> list[MPI.Message]:
        """Let mpi4py wait for what is begun; gives what `_let_end` takes.  Local."""
        return [] if self._tag is None else [starts().start(self, self._tag)]

    def _let_end(self, messages: list[MPI.Message] | None = None) -> None:
        """Let whoever waits for the handle go on; harmless twice, in any thread.

        Who comes late says which start is meant by its ``messages``.
        """
        try:
            message = (self._messages if messages is None else messages).pop()
        except IndexError:
            return
        self._finish()
        receive(message)

    def _finish(self) -> None:
        """Do what is left once it is over; whoever waits for the handle waits for that."""

    def _end_handle(self, status: MPI.Status | None) -> None:
        """Note that somebody has waited for what is over.  Local."""
        self._let_end()
        if self._tag is not None:
            MPI.Prequest.Wait(self, status)

    def _was_waited_for(self) -> bool:
        """Tell whether mpi4py has waited for what is over.  Local."""
        self._let_end()
        return MPI.Request.Testsome([MPI.Prequest(self)]) is None

    def heard(self, message: MPI.Message) -> None:
        """Begin what mpi4py has started; called by `Starts`, in any thread.

        Parameters
        ----------
        message : MPI.Message
            Received at the end.
        """
        ends = [message]
        try:
            self._begin(ends)
        except BaseException as error:  # raised where somebody asks for the operation
            self._met = error
            self._let_end(ends)

    def end_late(self) -> bool:
        """Let a wait of mpi4py's end, if the operation is over.

        Returns
        -------
        bool
            Whether there may be such a wait.
        """
        messages = self._messages
        if messages and self._is_done():
            self._let_end(messages)
        return bool(messages)

    def _tell(self) -> None:
        """Raise what a start has met that mpi4py made, once."""
        met, self._met = self._met, None
        if met is not None:
            raise met

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start several, ours and mpi4py's.

        Parameters
        ----------
        requests : sequence of MPI.Prequest
            Started in this order.
        """
        for request in requests:
            request.Start()

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        """Tell whether it is over, and leave it to be waited for.

        Parameters
        ----------
        status : MPI.Status, optional
            Filled in if it is.

        Returns
        -------
        bool
            As of mpi4py's.
        """
        self._look()
        self.end_late()
        return super().Get_status(status)

    def Cancel(self) -> None:
        """Refuse: the other ranks count on it.

        Raises
        ------
        UsageError
            Always (local).
        """
        raise UsageError("Cancel", "collectives cannot be cancelled", "wait for it")

    cancel = Cancel

    def free(self) -> None:
        """Let go of the buffers, see `close`."""
        self.close()
