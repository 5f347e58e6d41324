"""How long each rank computes in each round, written to one file."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.coded.stragglers.trace_file import TraceWriter
from closeranks.collectives.communicator.derived_communicators import Deriving
from closeranks.collectives.engine.error_translation import keep_left
from closeranks.comms import argument
from closeranks.comms.exit import forked_child
from closeranks.comms.wait import wait
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

#: Rounds of a message to the rank that writes.
BLOCK: Final = 64
_TAG_ROWS, _TAG_LAST = 1, 2
_WHERE: Final = "Recorder"
Seconds = NDArray[np.float64]


class _Computing:
    """Takes the time of one round after the other."""

    __slots__ = ("_add", "_began_s")

    def __init__(self, add: Callable[[float, float], None]) -> None:
        self._add, self._began_s = add, 0.0

    def __enter__(self) -> None:
        if self._began_s:
            problem, remedy = "a round is being recorded", "end it before the next one"
            raise UsageError("Recorder.compute", problem, remedy)
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        began_s, self._began_s = self._began_s, 0.0
        self._add(began_s, time.perf_counter() - began_s)


class Recorder:
    """Records how long each rank computes in each round of any loop.

    ``with recorder.compute():`` around what a rank computes in a round takes
    less than two microseconds.  After every 64 rounds a rank sends its times
    to rank 0, which writes the rounds of which it has the times of all ranks.
    No rank waits for another one before `close`.

    Collective over ``comm`` to make and to close.

    Parameters
    ----------
    comm : MPI.Intracomm
        The ranks; their own messages never meet those of the recorder.
    path : str or Path
        The file that rank 0 writes, in the form of
        `closeranks.collectives.coded.Trace`; one of this name is replaced.
    micro : int
        Into how many micro-batches a round is cut; 0 if unknown.

    Attributes
    ----------
    rounds : int
        Rounds that this rank has ended.

    Raises
    ------
    UsageError
        On all ranks, if ``path`` names no file, or it cannot be written.

    Examples
    --------
    >>> with Recorder(comm, "run.trace") as recorder:  # doctest: +SKIP
    ...     for batch in batches:
    ...         with recorder.compute():
    ...             gradient = differentiate(batch)
    ...         comm.Allreduce(MPI.IN_PLACE, gradient)
    """

    def __init__(self, comm: MPI.Intracomm, path: str | Path, *, micro: int = 0) -> None:
        argument.instance(_WHERE, "comm", comm, MPI.Intracomm, "give a communicator")
        self._check: Any = None
        self._is_outlived: Callable[[], bool] = lambda: False
        if isinstance(comm, Deriving):
            self._comm, request = comm.start_plain()
            request.Wait()
            family = comm.membership.family
            world = family.world
            self._check = lambda: world.check(_WHERE)
            self._is_outlived = lambda: family.world is not world
        else:
            self._comm = comm.Dup()
        hosts = self._comm.gather(MPI.Get_processor_name(), 0)
        self._writer: TraceWriter | None = None
        problem: Exception | None = None
        if self._comm.rank == 0:
            try:
                self._writer = TraceWriter(path, self._comm.size, micro=micro, hosts=hosts or ())
            except Exception as error:  # the other ranks wait
                problem = error
        problem = self._comm.bcast(problem, 0)
        if problem is not None:
            self._comm.Free()
            raise problem
        self.rounds, self._count = 0, 0
        self._before_s, self._computing = 0.0, _Computing(self._add)
        self._rows: Seconds = np.zeros((BLOCK, 2))
        self._sent: deque[tuple[MPI.Request, Seconds]] = deque()
        self._come: list[list[Seconds]] = [[] for _ in range(self._comm.size)]
        self._is_closed, self._last = False, 0

    def compute(self) -> _Computing:
        """Give a context manager: what a rank computes in a round.

        Local; not inside of itself, which raises `UsageError`.
        """
        return self._computing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; after an exception no rank is waited for, nor waits for this one."""
        del error, traceback
        if kind is None:
            self.close()
        elif not self._is_closed:
            self._is_closed = True
            with suppress(MPI.Exception, UsageError):  # the program's error is to be seen
                self._send(_TAG_LAST)

    def note(self, seconds: float) -> None:
        """Note a round that ends now, in which this rank has computed so long.

        Local.

        Parameters
        ----------
        seconds : float
            How long.
        """
        self._add(time.perf_counter() - seconds, seconds)

    def _add(self, began_s: float, seconds: float) -> None:
        if self._is_closed:
            raise UsageError(_WHERE, "the recorder is closed", "make a new one")
        if self._count:
            self._rows[self._count - 1, 1] = max(0.0, began_s - self._before_s)
        if self._count == BLOCK:  # not before: now it is known how long its last round was
            self._send(_TAG_ROWS)
        self._rows[self._count, 0] = seconds
        self._before_s = began_s
        self.rounds += 1
        self._count += 1

    def _send(self, tag: int) -> None:
        """Send the rounds of a block to rank 0, which writes what it has of all."""
        rows, self._rows = self._rows[: self._count], np.zeros((BLOCK, 2))
        self._count = 0
        if forked_child.is_child() or self._is_outlived():
            return
        while self._sent and self._sent[0][0].Test():
            self._sent.popleft()
        if self._comm.rank:
            self._sent.append((self._comm.Isend(rows, 0, tag), rows))
            return
        self._come[0].append(rows)
        while self._receive():
            continue
        self._write()

    def _receive(self, tag: int = MPI.ANY_TAG) -> bool:
        """Receive a block, if one is there; tell whether."""
        status = MPI.Status()
        if not self._comm.Iprobe(MPI.ANY_SOURCE, tag, status):
            return False
        rows = np.empty((status.Get_count(MPI.DOUBLE) // 2, 2))
        source, found = status.Get_source(), status.Get_tag()
        self._comm.Recv(rows, source, found)
        self._come[source].append(rows)
        self._last += found == _TAG_LAST
        return True

    def _write(self) -> None:
        """Write the rounds of which the times of all ranks are there."""
        whole = [np.concatenate([*some, np.empty((0, 2))]) for some in self._come]
        rounds = min(map(len, whole))
        if rounds and self._writer is not None:
            compute_s, step_s = np.stack([rows[:rounds] for rows in whole], axis=2).swapaxes(0, 1)
            self._writer.append(compute_s, step_s)
            self._come = [[rows[rounds:]] for rows in whole]

    def close(self) -> None:
        """Write the rest, and free the messages.  Collective; harmless twice.

        Rounds that not all ranks have ended are left out.  After a recovery it is
        local, and the file has the rounds that were written before.

        Raises
        ------
        UsageError
            On rank 0, if the file cannot be written.
        PeerLost, Revoked
            If ranks of a closeranks communicator have died; the file then has
            the rounds that were written before.
        """
        if self._is_closed or forked_child.is_child():
            return
        self._is_closed = True
        if self._is_outlived():
            keep_left(*self._sent)  # the library may still read there
            return
        self._send(_TAG_LAST)
        others = self._comm.size - 1
        if self._comm.rank == 0:

            def has_all() -> bool:
                while self._receive():
                    continue
                return self._last == others

            wait(has_all, abort=self._check)
            self._write()
        else:
            wait(lambda: all(one.Test() for one, _ in self._sent), abort=self._check)
        self._comm.Free()
