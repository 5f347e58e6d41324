"""What mpi4py may start and wait for in the place of its own persistent requests."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence

from mpi4py import MPI

from closeranks.collectives.dispatch.persistent_starts import receive, starts
from closeranks.errors import UsageError


class Startable(MPI.Prequest):
    """A persistent request of mpi4py whose operation is ours.

    Its handle is the library's own persistent operation, where that serves every
    start and nothing else is to be done, or that of a message to this process, see
    `closeranks.collectives.dispatch.persistent_starts`.
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
