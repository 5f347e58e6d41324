"""Attempts: a body that is repeated until all members agree that it has ended.

The states of an `Attempt` on one rank::

                       made by `attempts`
                               |
                               | __enter__: Recovery.begin
                               v
                          under way       keep, save, follow: note the
                               |          buffers and calls of the body
                               | __exit__: the body has ended or raised,
                               |           Recovery.vote
                               v
         +---------------------+-----------------------+
         | END                 | REPEAT                | LEAVE, LEAVE_TOLD
         |                     | buffers put back      | buffers put back
         v                     v                       v
       agreed                failed                 aborted
    the results are     Recovery.recover; then   raises the own error, or
    valid everywhere    the loop makes another   PeerLost with the error
                        attempt                  of another member

`closeranks.collectives.faults.votes` tells the outcomes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from closeranks.collectives.engine.error_translation import is_gone, may_blame
from closeranks.collectives.engine.progress_engine import make_way
from closeranks.collectives.faults.votes import ABORT, AGAIN, AGREED, Outcome
from closeranks.comms.buffers.buffer_spec import message
from closeranks.comms.exit import forked_child
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.interruption import Interruption
from closeranks.comms.wait import Deadline, wait
from closeranks.errors import PeerError, PeerLost, Revoked, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.arguments.collective_call import CollectiveCall
    from closeranks.collectives.dispatch.persistent_operation import Persistent
    from closeranks.collectives.dispatch.request import Request
    from closeranks.collectives.engine.epoch_world import World
    from closeranks.collectives.faults.recovery import Recovery
    from closeranks.comms.buffers.array_memory import Bytes
    from closeranks.comms.buffers.buffer_spec import Message, Vector
    from closeranks.comms.gpu.device_array import Event

#: How long calls of the library may take to end where nobody can end them, in seconds.
_QUIET_S: Final = 0.2


class Attempt:
    """One run of the body, see `Communicator.attempts`; a context manager.

    Parameters
    ----------
    recovery : Recovery
        Of the communicator.
    number : int
        1 for the first; the same on all members, newcomers too.
    lost : tuple of int
        Seats that the attempt before has cost.
    restores : bool
        Whether buffers that are overwritten in place are kept.

    Attributes
    ----------
    number, lost, restores
        As given; ``lost`` are seats.
    world : int
        Number of members at its start.
    agreed : bool or None
        How it has ended: all results are valid on all members, or none is; None
        before it has.
    error : Exception or None
        The error by which it has failed on this rank.
    marks : dict of str to float
        When a failed one was "raised", "revoked", "agreed" and "shrunk" here, by
        `time.monotonic`.
    """

    def __init__(
        self, recovery: Recovery, number: int, lost: tuple[int, ...], *, restores: bool
    ) -> None:
        self.number, self.lost, self.restores = number, lost, restores
        self.world = recovery.size
        self.agreed: bool | None = None
        self.error: Exception | None = None
        self.is_repeated = False
        self.marks: dict[str, float] = {}
        self._recovery = recovery
        self._kept: list[tuple[Message | Vector, Bytes]] = []
        self._places: set[tuple[Any, ...]] = set()
        self._requests: list[Request] = []
        self._started: dict[int, Persistent] = {}
        self._streams: dict[tuple[tuple[int, int], int], tuple[Event, tuple[World, ...]]] = {}

    def __repr__(self) -> str:
        state = {None: "under way", True: "agreed", False: "failed"}[self.agreed]
        return f"<Attempt {self.number}: {self.world} members, {state}>"

    def __enter__(self) -> Attempt:
        forked_child.refuse_in_child("attempts")
        if self.agreed is not None:
            raise UsageError("attempts", "an attempt entered twice", "one with block an attempt")
        try:
            self._recovery.begin(self)
            return self
        except BaseException as met:
            self._recovery.note(met)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if forked_child.is_child():
            return False  # the parent votes
        interruption = Interruption()
        self.agreed = False
        try:
            error, outcome = self._voted(error, interruption)
            if outcome.goes_on:
                self._go_on(error)
        except BaseException as met:
            self._recovery.note(met, error)
            raise
        self.agreed = outcome is Outcome.END
        if interruption.error is not None:
            raise interruption.error  # it changes nothing for the others
        if outcome is Outcome.LEAVE_TOLD:
            raise self._recovery.aborted() from error
        if outcome is Outcome.LEAVE and kind is None:
            assert error is not None
            raise error
        return self.is_repeated

    def _voted(
        self, error: BaseException | None, interruption: Interruption
    ) -> tuple[BaseException | None, Outcome]:
        """Vote on the error that has ended it here; gives that error and the outcome."""
        self._recovery.end()
        self.mark("raised")
        if error is None:
            error = self._left_over()
        elif isinstance(error, MPI.Exception):
            error = self._meant(error)
        vote = vote_of(error, self._recovery.comm)
        outcome = self._recovery.vote(vote, error, self.mark, interruption.wait)
        if outcome is not Outcome.END:
            for one in self._started.values():
                one.spoil()  # its result is to be put back
            self._restore()
        self._kept.clear()  # the program may hold on to this for long
        return error, outcome

    def _go_on(self, error: BaseException | None) -> None:
        """Recover, and begin again with the survivors."""
        self.error = error if isinstance(error, Exception) else None
        self._recovery.recover(self.error)
        self.mark("shrunk")
        self.is_repeated = True
        self._recovery.leave()  # for all that is known here

    def mark(self, event: str) -> None:
        """Note when something has happened.  Local."""
        self.marks[event] = time.monotonic()

    def keep(self, demand: CollectiveCall) -> None:
        """Copy the buffer that a call in place overwrites, once for each buffer.

        Local; called before anything is sent.

        Parameters
        ----------
        demand : CollectiveCall
            The call.
        """
        if demand.in_place and demand.target is not None:
            self.save(demand.target if demand.source is None else demand.source)

    def save(self, whole: Message | Vector) -> None:
        """Copy a buffer before it is overwritten, unless a copy is there.  Local."""
        if not whole.element.plain and whole.memory.device is None:
            whole = message(whole.memory.data, "keep")  # its datatype may be freed before the end
        place = whole.place and (id(whole.memory.device), *whole.place)
        if not self.restores or place in self._places:
            return
        self._kept.append((whole, whole.data().copy()))  # the device's array stays, and its name
        if place is not None:
            self._places.add(place)

    def follow(self, request: Request) -> None:
        """Note a request that has to be over at the end.  Local."""
        self._requests = [other for other in self._requests if other != MPI.REQUEST_NULL]
        self._requests.append(request)

    def follow_start(self, operation: Persistent) -> None:
        """Note a persistent operation that has to be over at the end.  Local."""
        self._started[id(operation)] = operation

    def follow_stream(self, stream: tuple[int, int], event: Event, *worlds: World) -> None:
        """Note the last work of a stream, which a device has to finish by the end."""
        self._streams[stream, id(worlds[-1])] = event, worlds

    def _left_over(self) -> BaseException | None:
        """Give the error of calls that were not waited for; None if all went well."""
        calls: list[Request | Persistent] = [*self._requests]
        calls += [one for one in self._started.values() if one.under_way or one.is_void]
        try:
            if self._streams and ulfm.is_on():  # else nothing is repeated
                wait(self._is_dry)
            if all(one.Test() for one in calls):
                return None
        except BaseException as error:
            return error  # as if the body had raised it
        return UsageError("attempts", "a request is unfinished at the end of an attempt",
                          "wait for it inside the with block")  # fmt: skip

    def _meant(self, error: MPI.Exception) -> BaseException:
        """Give the error of a request, where `MPI.Request.Waitall` could not tell it."""
        met = (one.error for one in self._requests)
        return next((found for found in met if isinstance(found, PeerError)), error)

    def _is_dry(self) -> bool:
        """Tell whether devices have finished their work.  Local."""
        for _, worlds in self._streams.values():
            for world in worlds:
                make_way(world)
                world.check("attempts")
        return all(event.done for event, _ in self._streams.values())

    def _restore(self) -> None:
        """Put back overwritten buffers, once no call writes there any more."""
        patience = None if ulfm.is_on() else Deadline(_QUIET_S)
        with self._recovery.last_resort():
            wait(self._is_quiet, polite=True, deadline=patience)
        for whole, saved in reversed(self._kept):  # what was copied first is the oldest
            whole.store(saved)

    def _is_quiet(self) -> bool:
        """Tell whether MPI has finished all calls that were begun.  Local."""
        starts = all(one.is_gone() for one in self._started.values())
        return all(map(_is_over, self._requests)) and starts


def _is_over(request: Request) -> bool:
    try:
        return is_gone(request)
    except PeerError:
        return True


def vote_of(error: BaseException | None, comm: MPI.Intracomm) -> int:
    """Give the vote of a rank that leaves an attempt with an error, or without.

    Parameters
    ----------
    error : BaseException or None
        The error that ended it.
    comm : MPI.Intracomm
        All members.

    Returns
    -------
    int
        `AGAIN` if a peer is to blame.  `ABORT` for every other error, and for one
        that the next attempt would meet again.
    """
    if error is None:
        return AGREED
    if isinstance(error, Revoked) and error.for_good:
        return ABORT
    return AGAIN if isinstance(error, Exception) and may_blame(error, comm) else ABORT


def words_of(error: BaseException) -> str:
    """Write the text of an error for the others; its class where it has none."""
    try:
        return repr(error)[:1000]  # all will get it
    except Exception:
        return type(error).__name__


def _spent(error: Exception | None, lost: tuple[int, ...], limit: int) -> Exception:
    """Give the error of the last attempt that was allowed, with a remedy."""
    if error is None and not lost:
        return Revoked(
            "attempts", problem="the last one failed by what its body had caught, or elsewhere",
            remedy=f"limit={limit}: allow more", for_good=True,
        )  # fmt: skip
    error = error or PeerLost("attempts", (), seats=lost)
    if isinstance(error, PeerLost):
        error.remedy = f"limit={limit} attempts have failed: allow more"
    return error


def attempts(
    recovery: Recovery, limit: int | None, min_ranks: int, *, restores: bool
) -> Iterator[Attempt]:
    """Give attempts until one is agreed, see `Communicator.attempts`.  Collective.

    Parameters
    ----------
    recovery : Recovery
        Of the communicator.
    limit : int or None
        How many at most.
    min_ranks : int
        With fewer members the loop ends.
    restores : bool
        Whether buffers that are overwritten in place are kept.

    Yields
    ------
    Attempt
        To be entered at once.
    """
    recovery.check_alone()
    loop = recovery.start()
    try:
        recovery.catch_up()
        yield from _repeated(recovery, limit, min_ranks, restores=restores)
    finally:
        recovery.finish(loop)


def _repeated(
    recovery: Recovery, limit: int | None, min_ranks: int, *, restores: bool
) -> Iterator[Attempt]:
    """Give attempts until one is agreed, or there are no more."""
    error: Exception | None = None
    while True:
        lost = recovery.lost
        if limit is not None and recovery.number > limit:
            raise _spent(error, lost, limit)
        if recovery.is_fruitless:
            raise Revoked("attempts", problem="they fail again and again, though nobody is lost",
                          remedy="see the cause", for_good=True) from error  # fmt: skip
        if recovery.size < min_ranks:
            raise PeerLost(
                "attempts", (), seats=lost, cause=f"{recovery.size} are left",
                remedy=f"min_ranks={min_ranks} are wanted: relaunch",
            )  # fmt: skip
        attempt = Attempt(recovery, recovery.number, lost, restores=restores)
        yield attempt
        recovery.leave(False)
        if attempt.agreed is None:
            raise UsageError("attempts", "an attempt that was not entered",
                             "for attempt in comm.attempts(): with attempt: ...")  # fmt: skip
        if attempt.agreed:
            return
        error = attempt.error
