"""Notices between ranks: a rank has given up, or has refused a call.

A library without ULFM tells no rank of it: a rank that waits for such a rank
waits for ever.  The first notice that arrives ends the family on this rank.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakValueDictionary

from closeranks.comms.liveness import uncaught_error
from closeranks.comms.liveness.call_counter import CallCounter, PendingCalls
from closeranks.comms.liveness.channel import Channel
from closeranks.comms.liveness.failure_notice import Notice, decoded, encoded, in_words, notice_of
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import Disagreement, PeerLate, Revoked, Unavailable, UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

#: Messages of a rank: it has left; it has refused a call; it alone has refused a call.
_LEFT, _REFUSED, _ENDED = "left", "refused", "ended"
#: After a notice, a call of the library may last so long before its process is ended; a
#: call that another rank has refused may last so long, seconds.
INSIDE_S: Final = 1.0
_REFUSING_S: Final = 0.7
#: Between two checks while a notice or refusal is open, seconds.
_LOOK_S: Final = 0.05
#: How long a notice may arrive after the revocation that it has caused, seconds.
_NEWS_S: Final = 0.2
_REMEDY: Final = "end, or make the communicator anew on all ranks"


class _Refusal(NamedTuple):
    """A call that another rank has refused."""

    key: str
    number: int
    notice: Notice


class Notices:
    """Notices of a family that this rank has received, and sends.

    Without a channel unless made by `open`: then nothing is sent or received.

    Attributes
    ----------
    notice : Notice or None
        The notice that has ended the family.
    inside : PendingCalls
        Calls of the library that only the end of the process can end.
    left : bool
        Whether this rank has left.
    on_news : callable
        Called in another thread when there is a notice.
    """

    def __init__(self) -> None:
        self.notice: Notice | None = None
        self.inside, self.left = PendingCalls(), False
        self.on_news: Callable[[], object] = bool
        self._rank, self._others = 0, set[int]()
        self._channel: Channel | None = None
        self._counted: WeakValueDictionary[str, CallCounter] = WeakValueDictionary()
        self._made: dict[tuple[int, ...], int] = {}
        self._refusals: dict[_Refusal, float] = {}
        self._inside_s = 0.0

    @classmethod
    def open(cls, comm: MPI.Intracomm) -> Notices:
        """Open a channel between the ranks; collective over ``comm``.

        Parameters
        ----------
        comm : MPI.Intracomm
            The family's first ranks; not kept.

        Returns
        -------
        Notices
            With a thread that receives, until `close`.
        """
        made = cls()
        made._rank, made._others = comm.rank, set(range(comm.size)) - {comm.rank}
        made._channel = Channel(comm, made._hear, made._look)
        uncaught_error.family_opened(made)
        return made

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Tell the others if this rank fails to make the family.

        Local.  Bad input, mostly the same on all ranks, counts as a refused call.

        Yields
        ------
        None
            While the family is made.
        """
        calls = self._counted["init"] = CallCounter("init")
        number = calls.begin()
        try:
            yield
        except (UsageError, Disagreement, Unavailable) as error:
            self.refuse(calls, number, "init", error)
            self.close()
            raise
        except BaseException as error:
            self.leave(error)
            raise

    def count(self, seats: Sequence[int]) -> CallCounter:
        """Count the calls of one more communicator.

        Local; called in the same order by all ranks of it.

        Parameters
        ----------
        seats : sequence of int
            Its ranks, in the numbers of the family's first communicator.
        """
        members = tuple(seats)
        again = self._made[members] = self._made.get(members, -1) + 1
        made = CallCounter(f"{again}:{zlib.crc32(repr(members).encode()):x}:{len(members)}")
        self._counted[made.key] = made
        return made

    def check(self, operation: str, seats: Sequence[int] | None = None) -> None:
        """Raise `Revoked` if a rank has given up.  Local.

        Parameters
        ----------
        operation : str
            The call that is refused then.
        seats : sequence of int, optional
            Ranks of the communicator; default: of the family's first communicator.
        """
        if self.notice is not None:
            raise self.revoked(operation, self.notice, seats)

    def revoked(
        self, operation: str, notice: Notice, seats: Sequence[int] | None = None
    ) -> Revoked:
        """Make the error of an operation that was ended; local, see `check`."""
        ranks = [notice.rank]
        if seats is not None:
            ranks = [seats.index(notice.rank)] if notice.rank in seats else []
        problem = str(notice)
        if ranks != [notice.rank]:
            problem += " (of the communicator that init made)"
        told = Revoked(operation, ranks, problem, _REMEDY, for_good=True)
        told.cause = notice.act
        return told

    def news(self) -> Notice | None:
        """Give the notice that has ended the family, after a revocation.

        Local.  Waits a moment: the notice may arrive after the revocation.
        """
        if self._channel is not None and self.notice is None:
            wait(lambda: self.notice is not None, deadline=Deadline(_NEWS_S), polite=True)
        return self.notice

    def leave(self, error: BaseException | None) -> None:
        """Tell all ranks that this one gives up, unless a notice made it do so.

        Local, harmless twice.

        Parameters
        ----------
        error : BaseException or None
            Its error.
        """
        if self.left or self._channel is None:
            return
        self.left = True
        # The ranks agree on late ranks, which must be the same on all of them.
        told = isinstance(error, PeerLate) or (isinstance(error, Revoked) and error.cause)
        own = notice_of(self._rank, error)
        if not told:
            self._end(own)
            self._channel.tell(encoded(_LEFT, *own))
        uncaught_error.family_left(self, error)

    def refuse(self, calls: CallCounter, number: int, operation: str, error: BaseException) -> None:
        """Note that this rank has refused a call, and tell all ranks.

        Local.  If all ranks refuse the call, nothing more happens.  A rank that is in
        the call, or has ended it, ends the family for all.

        Parameters
        ----------
        calls : CallCounter
            Calls of the communicator.
        number : int
            Number of the call.
        operation : str
            Name of the call.
        error : BaseException
            Why it was refused.
        """
        calls.refused.add(number)
        if self._channel is not None and self.notice is None:
            act = f"refused {operation}: {in_words(error)}"
            self._channel.tell(encoded(_REFUSED, calls.key, number, self._rank, act, 1))

    def close(self) -> None:
        """Close the channel.  Local, harmless twice."""
        if self._channel is not None:
            uncaught_error.family_closed(self)
            self._channel.close()

    def all_left(self) -> bool:
        """Tell whether all other ranks have left, each by an error of its own.  Local."""
        return not self._others

    def _end(self, notice: Notice) -> None:
        """End the family by this notice, unless an earlier notice has."""
        if self.notice is None:
            self.notice, self._inside_s = notice, time.monotonic()
            self.on_news()

    def _hear(self, message: bytes) -> None:
        """Take a message of another rank; in the channel's thread."""
        kind, *words = decoded(message) or [""]
        said: list[Any] = words
        if kind in (_LEFT, _ENDED):
            notice = Notice(*said)
            if kind == _LEFT:
                self._others.discard(notice.rank)
            self._end(notice)
        elif kind == _REFUSED:
            key, number, *rest = said
            self._refusals[_Refusal(key, number, Notice(*rest))] = 0.0

    def _look(self) -> float | None:
        """Check open notices and refusals; give when to check again."""
        now_s = time.monotonic()
        if self.notice is not None:
            return self._look_inside(self.notice, now_s)
        for refusal in tuple(self._refusals):
            self._look_at(refusal, now_s)
        return _LOOK_S if self._refusals or self.notice is not None else None

    def _look_inside(self, notice: Notice, now_s: float) -> float | None:
        """End the process if a call of the library goes on after the notice."""
        if self.left:
            return None
        if not self.inside:
            self._inside_s = now_s
        elif now_s - self._inside_s >= INSIDE_S:
            why = f"closeranks: rank {self._rank} ends, in a call of the MPI library: {notice}"
            uncaught_error.end_at_once(why, notice.status or 1)
        return _LOOK_S

    def _look_at(self, refusal: _Refusal, now_s: float) -> None:
        """End the family if this rank is in, or past, a call that another refuses."""
        calls, since_s = self._counted.get(refusal.key), self._refusals.get(refusal)
        if since_s is None:
            return  # another refusal of the same call has ended the family
        if calls is None or calls.begun <= refusal.number:
            return  # this rank has not reached the call yet
        if refusal.number in calls.refused:
            del self._refusals[refusal]
        elif not since_s or calls.reading:  # this rank may be about to refuse it
            self._refusals[refusal] = now_s
        elif now_s - since_s >= _REFUSING_S:
            self._refusals.clear()
            self._end(refusal.notice)
            assert self._channel is not None
            self._channel.tell(encoded(_ENDED, *refusal.notice))
