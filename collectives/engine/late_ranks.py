"""Arrival queries by messages: all survivors of a deadline name the same ranks.

A rank in a collective waits for late ranks, mostly through ranks that wait
themselves.  So a rank whose patience is over asks all others how many
collectives they have entered, and in which they are.  It tells all ranks which
ones are absent, and gives the world up.  The others leave that to it
(`closeranks.collectives.engine.late_ranks_protocol`).  They raise the same
error when they hear of it, late ranks at their next call.  A thread answers
for a rank that computes.

Two ranks may both ask before either is heard.  They may differ if a rank
arrives between their questions; the answer that a rank hears first counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.error_translation import is_gone
from closeranks.collectives.engine.late_ranks_protocol import ArrivalQueries
from closeranks.collectives.engine.progress_engine import engine
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.registry import Registry
from closeranks.comms.wait import Deadline, wait

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from closeranks.collectives.shm.segment_layout import Arrivals

#: Between two looks of a waiting rank, and of the thread.
_LOOK_S: Final = 1e-3
_PAUSE_S: Final = 20e-3
#: How long a world outlives the news that somebody is late, where a revocation would
#: overtake it; how long others wait for the news elsewhere.
_NEWS_S: Final = 0.2
#: So many messages may be under way before any is looked at; later twice what was left then.
_FEW: Final = 16
#: Kinds of messages: which ranks have entered that turn; how many this rank has entered and
#: which it is in; the ranks that are absent.
_ASK, _HERE, _LATE = range(3)


class Lateness(NamedTuple):
    """The result of an arrival query.

    Attributes
    ----------
    ranks : tuple of int
        Ranks that are absent; none if all are there, only slow.
    waited_s, limit_s : float
        Of the rank that asked.
    """

    ranks: tuple[int, ...]
    waited_s: float
    limit_s: float


class Attendance:
    """The arrivals of ranks at the collectives of a world; local to make.

    `enter`, `leave`, `missed` and `look` need the engine's lock, others take it.

    Parameters
    ----------
    traffic : MPI.Intracomm
        Carries the messages.
    tag : int
        A tag that no other message there uses.
    give_up : callable
        Revokes the world.

    Attributes
    ----------
    told : bool
        Whether the program has been told which ranks were late.
    """

    def __init__(self, traffic: MPI.Intracomm, tag: int, give_up: Callable[[], None]) -> None:
        self._traffic, self._tag, self._give_up = traffic, tag, give_up
        self.told = self._open = False
        self._entered, self._inside = 0, dict[int, None]()
        self._arrivals: Arrivals | None = None
        self._queries = ArrivalQueries(traffic.rank, traffic.size)
        self._news: Lateness | None = None
        self._sent: list[tuple[MPI.Request, NDArray[np.int64]]] = []
        self._sweep_at = _FEW
        self._look_at_s = self._tell_at_s = 0.0
        if late_rank_listener().is_busy:  # this world may be the next of one where deadlines hold
            self.open()

    @property
    def is_open(self) -> bool:
        """Whether it answers, or counts, any collective.  Local."""
        return self._open

    def open(self) -> None:
        """Answer for this rank from now on, even if it computes.  Local, harmless twice."""
        self._open = True
        late_rank_listener().keep(self)

    def count_in(self, arrivals: Arrivals) -> None:
        """Let the ranks of this node see the collective of this one.  Local."""
        self._arrivals = arrivals

    def enter(self) -> int:
        """Count a collective that has a deadline, as all ranks do; gives its turn."""
        if not self._open:  # say, a child's that was there before its parent's `using`
            self.open()
        turn = self._entered
        self._entered += 1
        self._inside[turn] = None
        return turn

    def leave(self, turn: int) -> None:
        """Note that a collective is over for this rank, well or not."""
        self._inside.pop(turn, None)  # a signal may have ended it half way before
        if self._arrivals is not None:
            self._arrivals.write(self._within())

    def news(self) -> Lateness | None:
        """Give the arrival query's result that has ended the world, if one did.

        Called where the world is revoked: the news may arrive after that.
        """
        with engine().lock:
            if self._open and not self.told and not ulfm.is_on():
                wait(lambda: self._news is not None, progress=self.look,
                     deadline=Deadline(_NEWS_S), polite=True)  # fmt: skip
            self.told = True
            return self._news

    def missed(self, turn: int, deadline: Deadline) -> Lateness | None:
        """Give the late ranks, once the deadline of a collective has passed.

        Parameters
        ----------
        turn : int
            See `enter`.
        deadline : Deadline
            Of the collective.

        Returns
        -------
        Lateness or None
            The same for all ranks; None as long as no rank knows.
        """
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_S
            self.look()
        if self._news is None and deadline.expired:
            self._ask(turn, deadline, now_s)
        if self._news is None or now_s < self._tell_at_s:
            return None
        self.told = True
        return self._news

    def _ask(self, turn: int, deadline: Deadline, now_s: float) -> None:
        """Ask the others, or read their answers; once known, tell all."""
        query = self._queries.query(turn, now_s)
        if query is None:
            return
        query.hear(self._traffic.rank, self._entered, self._within())
        for other in query.to_ask():
            self._send(other, _ASK, turn, round((query.until_s - now_s) * 1e6))
        absent = query.absent(now_s, self._arrivals.read() if self._arrivals else {})
        if absent is None:
            return
        times = (deadline.waited_s, deadline.limit_s)
        for other in range(self._traffic.size):
            if other != self._traffic.rank:
                self._send(other, _LATE, *(round(s * 1e6) for s in times), *absent)
        self._know(Lateness(absent, *times))

    def _within(self) -> int:
        """Give the first collective that this rank is in, the next one if in none."""
        return next(iter(self._inside), self._entered)

    def _know(self, news: Lateness) -> None:
        """Give the world up, but not before all have heard why.

        Where the library revokes, it revokes for all, and takes no more messages.
        """
        self._news = news
        if ulfm.is_on():
            self._tell_at_s = time.monotonic() + _NEWS_S
        else:
            self._give_up()

    def look(self) -> bool:
        """Answer the ranks that ask, and take answers; never blocks.

        Returns
        -------
        bool
            Whether anything was heard.
        """
        heard = False
        status = MPI.Status()
        try:
            while self._traffic.Iprobe(MPI.ANY_SOURCE, self._tag, status):
                words = np.empty(status.Get_count(MPI.INT64_T), np.int64)
                self._traffic.Recv(words, status.source, self._tag)
                self._take(status.source, *words.tolist())
                heard = True
        except MPI.Exception as error:  # ranks have died; others see to that
            if not ulfm.speaks_of_failure(error, self._traffic):
                raise
        return heard

    def _take(self, source: int, what: int, *words: int) -> None:
        if what == _ASK:
            turn, grace_us = words
            self._queries.asked(turn, grace_us / 1e6, time.monotonic())
            self._send(source, _HERE, turn, self._entered, self._within())
        elif what == _HERE:
            self._queries.hear(source, *words)
        elif what == _LATE and self._news is None:
            waited_us, limit_us, *ranks = words
            self._know(Lateness(tuple(ranks), waited_us / 1e6, limit_us / 1e6))

    def _send(self, rank: int, *words: int) -> None:
        """Send a few numbers; a rank that never takes them lets no rank wait."""
        message = np.array(words, np.int64)
        try:
            self._sent.append((self._traffic.Isend(message, rank, self._tag), message))
        except MPI.Exception as error:  # a dead rank is silent
            if not ulfm.speaks_of_failure(error, self._traffic):
                raise
        if len(self._sent) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Let go of sent messages; looks at no message more than twice or so."""
        self._sent = [(request, data) for request, data in self._sent if not is_gone(request)]
        self._sweep_at = 2 * len(self._sent) + _FEW

    def close(self) -> None:
        """Let go; no rank is late any more.  Local."""
        with engine().lock:  # the listener thread may be looking
            late_rank_listener().forget(self)
            self._sweep()
            self._arrivals = None
        self._sent.clear()


class LateRankListener:
    """A thread that answers arrival queries while the program computes.

    Made by `late_rank_listener`; any thread may call any method.
    """

    def __init__(self) -> None:
        self._kept: Registry[Attendance] = Registry()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether it answers for any world."""
        return bool(self._kept)

    def keep(self, attendance: Attendance) -> None:
        """Answer for a world as long as it is open.  Local."""
        self._kept.add(attendance)
        if self._thread is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(
                target=self._look, name="closeranks listener thread", daemon=True
            )
            self._thread.start()

    def forget(self, attendance: Attendance) -> None:
        """Answer for it no more.  Local."""
        self._kept.discard(attendance)

    def stop(self) -> None:
        """End the thread.  Local; called before MPI is finalized."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _look(self) -> None:
        while not self._stopping.wait(_PAUSE_S):
            with engine().lock:
                for attendance in self._kept:
                    attendance.look()


@cache
def late_rank_listener() -> LateRankListener:
    """Return this process's listener thread.  Local; any thread."""
    made = LateRankListener()
    before_finalize(made.stop)
    return made
