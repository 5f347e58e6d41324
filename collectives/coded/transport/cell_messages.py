"""Small messages between nodes about rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.error_translation import keep_left
from closeranks.comms.mpi import deferred_free, ulfm
from closeranks.comms.wait import wait

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator
    from closeranks.collectives.communicator.membership import Membership

#: Kinds of messages.
NOTE, PREPARE, PROMISE, ACCEPT, ACCEPTED, HEARD, ALL_LEFT, FAILED, END = range(1, 10)
MET, REFUSED = 10, 11
#: Tag of these messages; those of gradients have higher ones.
_TAG: Final = 1
_HEAD: Final = 6


class CellMessage(NamedTuple):
    """One message.

    Attributes
    ----------
    kind : int
        One of those above.
    round : int
        The round that it is about.
    cell, rank : int
        Node and rank that it comes from.
    ballot, accepted : int
        Numbers, by kind: of a NOTE its number and its completeness.
    data : bytes
        Flags of all ranks, or words.
    """

    kind: int
    round: int
    cell: int
    rank: int
    ballot: int
    accepted: int
    data: bytes


class CellMessages:
    """A communicator that carries the messages of one `CodedAllreduce`.

    Collective to make.  Without other nodes nothing is ever sent.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    cell : int
        This node.
    others : sequence of int
        Ranks of other nodes.
    """

    def __init__(self, comm: Communicator, cell: int, others: Sequence[int]) -> None:
        self._membership: Membership = comm.membership
        self._cell, self._rank, self._others = cell, comm.Get_rank(), tuple(others)
        self.comm: MPI.Intracomm | None = None
        if others:
            made, request = comm.start_plain()
            world = self._membership.family.world

            def abort() -> None:
                world.look()
                world.check("CodedAllreduce")

            wait(request.Test, abort=abort)
            made.Set_errhandler(MPI.ERRORS_RETURN)
            comm.Barrier()  # where a rank has none, it could not be revoked there
            self.comm = made
        self._sent: list[tuple[MPI.Request, object]] = []
        self._status = MPI.Status()
        self.sent_bytes = 0
        self._ended, self._is_ended = set[int](), False
        self._met: dict[int, int] = {}
        self._refused: dict[int, int] = {}

    def tell_all(self, kind: int, round_: int, numbers: tuple[int, int], data: bytes) -> None:
        """Send a message to all ranks of all other nodes.  Local."""
        for rank in self._others:
            self.tell(rank, kind, round_, numbers, data)

    def tell_or_revoke(self, kind: int, round_: int, data: bytes = b"") -> None:
        """Send a message to all ranks of all other nodes.  Local.

        If one of them has died, the communicator is revoked, which tells the others.
        """
        try:
            self.tell_all(kind, round_, (0, 0), data)
        except MPI.Exception:
            ulfm.revoke(self._membership.service.plain)

    def tell(
        self, rank: int, kind: int, round_: int, numbers: tuple[int, int], data: bytes
    ) -> None:
        """Send a message to a rank of another node, unless this one has ended.  Local."""
        if self._is_ended and kind not in (FAILED, REFUSED):
            return
        head = np.array([kind, round_, self._cell, self._rank, *numbers], np.int64)
        message = np.frombuffer(head.tobytes() + data, np.uint8)
        assert self.comm is not None
        self.keep(self.comm.Isend([message, MPI.BYTE], rank, _TAG), message)
        self.sent_bytes += message.nbytes

    def keep(self, request: MPI.Request, used: object) -> None:
        """Keep what a request uses until it is over.  Local."""
        self._sent = [one for one in self._sent if not one[0].Test()]
        self._sent.append((request, used))

    def come(self) -> list[CellMessage]:
        """Receive the messages that are there.  Local."""
        found: list[CellMessage] = []
        comm = self.comm
        if comm is None:
            return found
        while comm.Iprobe(MPI.ANY_SOURCE, _TAG, self._status):
            message = np.empty(self._status.Get_count(MPI.BYTE), np.uint8)
            comm.Recv([message, MPI.BYTE], self._status.Get_source(), _TAG)
            numbers = message[: 8 * _HEAD].view(np.int64).tolist()
            if numbers[0] == END:
                self._ended.add(numbers[3])
            elif numbers[0] == MET:
                self._met[numbers[2]] = max(numbers[1], self.met(numbers[2]))
            elif numbers[0] == REFUSED:
                self._refused[numbers[2]] = numbers[1]
            else:
                found.append(CellMessage._make((*numbers, message[8 * _HEAD :].tobytes())))
        return found

    def met(self, cell: int) -> int:
        """Give the number of meetings to which all ranks of another node have come."""
        return self._met.get(cell, 0)

    def refuses(self, cell: int, meeting: int) -> bool:
        """Tell whether another node has said that it does not come to a meeting.  Local."""
        return self._refused.get(cell, meeting + 1) <= meeting

    def end(self) -> None:
        """Tell other nodes that no more messages come from this rank.  Local.

        Where all have come before the communicator is freed, none of them can meet
        another communicator that has the same number in the library later.
        """
        self.tell_all(END, 0, (0, 0), b"")
        self._is_ended = True

    def without_end(self) -> list[int]:
        """Give the ranks of other nodes from which messages may come still.  Local."""
        return [rank for rank in self._others if rank not in self._ended]

    def has_ended(self) -> bool:
        """Tell whether all messages have come, and those from here were taken."""
        return not self.without_end() and self.flush()

    def flush(self) -> bool:
        """Tell whether all that was sent has been taken.  Local."""
        self._sent = [one for one in self._sent if not one[0].Test()]
        return not self._sent

    def close(self) -> None:
        """Free the communicator.  Collective, when all messages have been taken."""
        comm, self.comm = self.comm, None
        if comm is not None:
            comm.Free()

    def abandon(self) -> None:
        """Let go of a communicator of which ranks have given up.  Local, harmless twice.

        It is not freed: the library may still write to what its messages use.
        """
        keep_left(*self._sent)
        self._sent.clear()
        comm, self.comm = self.comm, None
        if comm is not None:
            deferred_free.defer(comm)
