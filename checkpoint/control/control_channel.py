"""How the ranks of a job agree on checkpoints, beside their other messages.

On a duplicate of the communicator, so that nothing meets the program's own
messages; it is revoked with the communicator.  A wait sleeps, because the
program has better use for the core.  Any thread may call; one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.checkpoint.control.pending import Pace
from closeranks.checkpoint.erasure.generator_matrix import Bytes
from closeranks.collectives.engine.error_translation import keep_left
from closeranks.collectives.engine.progress_engine import engine
from closeranks.comms.mpi import messages as message_limits
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.messages import allgather_bytes
from closeranks.comms.mpi.mpi_lock import TURN
from closeranks.comms.wait import wait
from closeranks.errors import CheckpointError, Revoked, UsageError

if TYPE_CHECKING:
    from closeranks.collectives.communicator.communicator import Communicator

Numbers = NDArray[np.int64]
_T = TypeVar("_T")
#: Bytes that a collective of the library is given at most: more may hang when a rank dies.
_MOST: Final = ulfm.BRIEF_BYTES if ulfm.is_on() else 1 << 30
#: Characters of a problem that others are told.
_TOLD = 240
#: Before the text of a problem that is of who has called.
_MISUSE: Final = "\x01"
#: For the text of errors.
_OPERATION = "checkpoint"


class Misuse(CheckpointError, UsageError):
    """Raised on all ranks if one of them cannot use its arguments."""


class ControlChannel:
    """A duplicate of a communicator; making it is collective.

    Parameters
    ----------
    comm : Communicator
        Of the job.

    Attributes
    ----------
    rank, size : int
        Of the communicator.
    epoch : int
        In which it was made; it is of no use in another one.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self.epoch = comm, comm.epoch
        self.rank, self.size = comm.rank, comm.size
        made: list[MPI.Intracomm] = []

        def duplicate() -> list[MPI.Request]:
            plain, request = comm.start_plain()
            made.append(plain)
            return [request]

        self._finish(duplicate)()
        self._plain = made[0]

    def least(self, values: Sequence[int] | Numbers) -> Numbers:
        """Give the least of each value over all ranks.  Collective."""
        own = np.asarray(values, np.int64)
        # Where a rank has died the library may end well and write nothing: that is no yes.
        found = np.full_like(own, np.iinfo(np.int64).min)
        for start in range(0, max(1, own.size), _MOST // own.itemsize):
            part = slice(start, start + _MOST // own.itemsize)
            self._finish(lambda: [self._plain.Iallreduce(own[part], found[part], MPI.MIN)])()  # noqa: B023
        return found

    def gather(self, values: Sequence[int] | Numbers | Bytes) -> NDArray[np.generic]:
        """Give the values of all ranks, shape (size, count).  Collective."""
        own = np.ascontiguousarray(values)
        counts = np.full(self.size, own.nbytes, np.int64)
        found = self._spread(own.reshape(-1).view(np.uint8), counts)
        return found.view(own.dtype).reshape(self.size, own.size)

    def together(self, operation: str, problem: BaseException | None) -> None:
        """Raise on all ranks if any has a problem.

        Collective.

        Parameters
        ----------
        operation : str
            Name of the operation, for the message.
        problem : BaseException or None
            This rank's; raised here as the cause.

        Raises
        ------
        CheckpointError
            With the text of the first rank that has a problem; also a
            `UsageError`, if that rank's problem is one.
        """
        if int(self.least([problem is None])[0]) == 1:
            return
        text = "" if problem is None else f"{type(problem).__name__}: {problem}"
        text = f"{_MISUSE}{text}" if isinstance(problem, UsageError) else text
        own = np.zeros(_TOLD, np.uint8)
        data = np.frombuffer(text.encode(errors="replace")[:_TOLD], np.uint8)
        own[: len(data)] = data
        said = self.gather(own)
        told = np.flatnonzero(said[:, 0])
        if not len(told):
            raise self._unheard()
        first = int(told[0])
        words = said[first].tobytes().rstrip(b"\0").decode(errors="ignore")
        kind = Misuse if words.startswith(_MISUSE) else CheckpointError
        raise kind(operation, f"rank {first}: {words.removeprefix(_MISUSE)}") from problem

    def taken(self, operation: str, step: Callable[[], _T]) -> _T:
        """Take a step on all ranks; raise on all of them the error of one.

        Collective.

        Parameters
        ----------
        operation : str
            Name of the operation, for the message.
        step : callable
            A step that may fail on one rank alone, and does not communicate.

        Returns
        -------
        object
            The result of the step here.

        Raises
        ------
        CheckpointError
            As of `together`.
        """
        made: list[_T] = []
        problem: Exception | None = None
        try:
            made.append(step())
        except Exception as error:
            problem = error
        self.together(operation, problem)
        return made[0]

    def told(
        self,
        operation: str,
        step: Callable[[], Sequence[int] | Numbers],
        count: int,
        exchange: Callable[[Numbers], NDArray[Any]],
    ) -> NDArray[Any]:
        """Take a step that gives numbers and exchange them, in one message.

        Collective.

        Parameters
        ----------
        operation, step
            As of `taken`.
        count : int
            How many numbers the step gives.
        exchange : callable
            `least` or `gather`.

        Returns
        -------
        ndarray of int64
            What ``exchange`` makes of them.

        Raises
        ------
        CheckpointError
            As of `together`.
        """
        own, problem = np.zeros(1 + count, np.int64), None
        try:
            own[1:] = step()
            own[0] = 1
        except Exception as error:
            problem = error
        found = exchange(own)
        if not np.all(found[..., 0] == 1):
            self.together(operation, problem)
            raise self._unheard()
        return found[..., 1:]

    def everything(self, mine: object) -> list[Any]:
        """Give the values of all ranks, as plain JSON.  Collective."""
        own = np.frombuffer(json.dumps(mine).encode(), np.uint8)
        counts = self.gather([own.size])[:, 0].astype(np.int64)
        found = self._spread(own, counts)
        stops = np.cumsum(counts)
        if not (counts.all() and found[stops - counts].all()):
            raise self._unheard()
        return [json.loads(found[stop - count : stop].tobytes())
                for stop, count in zip(stops.tolist(), counts.tolist(), strict=True)]  # fmt: skip

    def _spread(self, own: Bytes, counts: Numbers) -> Bytes:
        """Give all ranks the bytes of all, or zeros if the library lies."""
        nbytes = int(counts.sum())
        if nbytes > _MOST:
            return allgather_bytes(
                own, counts, self.rank,
                lambda taker, sent, giver, room: self.move([(taker, sent)], [(giver, room)])(),
            )  # fmt: skip
        found = np.zeros(nbytes, np.uint8)
        spec = [found, (counts, np.cumsum(counts) - counts), MPI.BYTE]
        self._finish(lambda: [self._plain.Iallgatherv([own, MPI.BYTE], spec)])()
        return found

    def across(self, values: Sequence[int] | Numbers) -> Numbers:
        """Give one value of each rank for this one, for a value for each.  Collective."""
        own = np.asarray(values, np.int64)
        found = np.empty_like(own)
        self._finish(lambda: [self._plain.Ialltoall(own, found)])()
        return found

    def move(
        self, sends: Sequence[tuple[int, Bytes]], receives: Sequence[tuple[int, Bytes]]
    ) -> Callable[[], None]:
        """Start to move bytes between ranks.

        Both ends name the messages between them in the same order.

        Parameters
        ----------
        sends, receives : sequence of (int, ndarray of uint8)
            Rank and memory, in one piece; long ones are cut.

        Returns
        -------
        callable
            Waits until all have arrived and the memory is free.
        """

        def post() -> list[MPI.Request]:
            calls = ((self._plain.Irecv, receives), (self._plain.Isend, sends))
            return [
                call([data[part], MPI.BYTE], rank)
                for call, messages in calls
                for rank, data in messages
                for part in message_limits.cut(data.nbytes)
            ]

        return self._finish(post)

    def pace(self, is_awaited: Callable[[], bool]) -> Pace:
        """Give the pace that leaves the wire to the program's own calls.

        Local.

        Parameters
        ----------
        is_awaited : callable
            Tells whether the program waits for the save.
        """
        return Pace(self._calls, lambda: bool(engine().in_flight), is_awaited)

    def _unheard(self) -> Exception:
        """Give the error of a call that ends well without a message of each rank."""
        return self._explained(MPI.Exception(MPI.ERR_PROC_FAILED))

    def _explained(self, error: MPI.Exception) -> Exception:
        """Give the error that is raised for an error of the library.

        A background thread may hear late of a death.  In a later epoch that is
        `Revoked`, and no death in the new world.
        """
        if self._comm.epoch != self.epoch:
            return Revoked(_OPERATION)
        return self._comm.explained(_OPERATION, error)

    def _calls(self) -> int:
        """Count the program's calls of the communicator."""
        try:
            return sum(self._comm.statistics().calls.values())
        except RuntimeError:  # a first one of its kind is being counted: no count was that
            return -1

    def close(self) -> None:
        """Free the duplicate.  Collective."""
        with TURN:
            self._plain.Free()

    def _finish(self, post: Callable[[], list[MPI.Request]]) -> Callable[[], None]:
        """Start the library's requests; gives the function that waits for them."""
        try:
            with TURN:
                requests = post()
        except MPI.Exception as error:
            raise self._explained(error)  # noqa: B904 - which knows its cause

        def is_done() -> bool:
            with TURN:
                return bool(MPI.Request.Testall(requests))

        def finish() -> None:
            try:
                wait(is_done, abort=partial(self._comm.refuse_given_up, _OPERATION), polite=True)
            except MPI.Exception as error:
                raise self._explained(error)  # noqa: B904 - which knows its cause
            except BaseException:
                keep_left(*requests)
                raise

        return finish
