"""The one engine of a process: it drives everything that is in flight.

All MPI calls of the package happen under its lock.  A blocking call, an ``I``
call and a persistent operation are three ways to drive the same executions:
start one and wait; start one and come back; start one again and again.  While
a rank waits for a kernel, which calls nothing of the MPI library, `let_work`
lets the library serve the other ranks.
"""

from __future__ import annotations

import threading
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine.error_translation import grounds, is_written
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.progress_answer import Patience
from closeranks.collectives.plans import message_tags
from closeranks.comms.mpi import ulfm
from closeranks.comms.mpi.finalization import before_finalize
from closeranks.comms.mpi.mpi_lock import TURN, give_back, in_turn
from closeranks.comms.wait import Deadline, is_crowded, prompt_switches, wait, wake_promptly
from closeranks.errors import Revoked, Unavailable

if TYPE_CHECKING:
    from closeranks.collectives.engine.epoch_world import World


def let_work(world: World) -> None:
    """Let the library serve other ranks, their one-sided calls among it.

    Local; a probe, which takes 1 to 2 us.

    Parameters
    ----------
    world : World
        Whose kernels are waited for.
    """
    if ulfm.is_on():  # there a probe of others raises the news of their death
        ulfm.listen()
    elif not (world.closed or world.revoked):
        # MPICH serves nobody in a probe for messages to itself.
        world.traffic.Iprobe(MPI.ANY_SOURCE, message_tags.farewell(world.window))


#: Rounds between two looks at abort words and deadlines.
_LOOK_EVERY = 16
#: How long compiled code may wait for messages at a time.
_WAITING_NS: Final = 5_000
#: The same where ranks outnumber cores, and when it begins to yield.  Python would need more
#: than a switch to another rank takes to find out that nothing has come.
_CROWDED_NS: Final = (200_000, 0)
#: The same for the thread, and when and how long it sleeps meanwhile: see `Patience`.  It
#: stays long because coming back means to queue for the GIL, 5 ms behind a program that
#: computes, and it sleeps because a yield costs a time slice where a core is shared.
_DRIVING: Final = (20_000_000, 30_000, 50)
#: Seconds that it stays when nothing is in flight any more.
_STAYING_S: Final = 1.0
#: How long it stays with one of several executions at most.
_SHARING_NS: Final = 5_000_000


class Engine:
    """Everything in flight in this process, and the lock of its MPI calls.

    Made by `engine`; any thread may call any method.  Executions of one world
    are started in the order of their sequence numbers.

    Attributes
    ----------
    lock : threading.RLock
        Held around every MPI call of the package; a client that calls MPI on a
        world's communicators holds it too.
    """

    def __init__(self) -> None:
        self.lock = TURN
        self._flying: list[Execution] = []
        self._unfinished: list[Execution] = []
        self._rounds = 0
        self._thread: threading.Thread | None = None
        self._wake_event = threading.Event()
        self._background: set[Execution] = set()
        self._stopping = False
        #: Not 0 while a thread wants the lock from one that waits in compiled code.
        self._wanted = np.zeros(1, np.int64)
        self._driving = Patience(*_DRIVING, self._wanted.ctypes.data)
        self._moved_ns = 0

    @property
    def in_flight(self) -> tuple[Execution, ...]:
        """Executions that have not drained, in the order in which they advance."""
        return tuple(self._flying)

    def flying_in(self, world: World) -> tuple[Execution, ...]:
        """Give what is in flight in one world, messages of its own or not.  Local."""
        here = world.attendance
        return tuple(one for one in self.in_flight if one.bound.world.attendance is here)

    def start(self, execution: Execution, *, background: bool = False) -> None:
        """Take an execution and do what can be done at once.

        Local; never blocks.

        Parameters
        ----------
        execution : Execution
            Just made; its world may not be revoked.
        background : bool
            Whether it must finish without anybody calling the engine: a thread
            drives the engine while any such execution is in flight, which needs
            MPI_THREAD_MULTIPLE.

        Raises
        ------
        PeerLost, Revoked
            If its world is revoked; local.
        Unavailable
            If ``background`` asks for threads that MPI was not initialised for.
        BaseException
            Of the handler of a signal, see `wait`.
        """
        if background and not _has_threads():
            execution.bound.release()
            raise Unavailable(
                "progress without the program's help", "initialise MPI with THREAD_MULTIPLE"
            )
        try:
            with self._claimed():
                execution.bound.world.check(execution.operation)
                self._enter(execution)
                self._advance(execution)
                self._look_now_and_then()
                if background and not execution.finished:
                    self._drive_alone(execution)
        except BaseException:
            self.leave(execution)
            raise

    def _claimed(self) -> threading.RLock:
        """Give the lock, to be taken: who waits with it in compiled code comes back.

        `progress` says that it is wanted no more.
        """
        self._wanted[0] = 1
        return self.lock

    def _enter(self, execution: Execution) -> None:
        """Let an execution be in flight; the last line says that it is."""
        execution.bound.world.undrained[execution.identity.sequence] = None
        if execution.deadline is not None:
            execution.turn = execution.bound.world.attendance.enter()
        for step, native in execution.bound.native.items():
            native.enter(execution, step)
        place = len(self._flying)
        while place and self._flying[place - 1].priority < execution.priority:
            place -= 1
        self._flying.insert(place, execution)

    def progress(self, patience: Patience | None = None) -> bool:
        """Advance everything in flight once; True if anything moved.

        Local; never blocks: where another thread is at it, nothing is done.

        Parameters
        ----------
        patience : Patience, optional
            How long it may stay where only one execution is in flight.

        Returns
        -------
        bool
            Whether a step of any execution has been done.
        """
        try:  # as `in_turn`, which costs two calls more
            if not self.lock.acquire(blocking=False):
                if patience is not self._driving:
                    self._wanted[0] = 1
                return False
            self._wanted[0] = 0
            moved = False
            if len(self._flying) > 1:
                patience = self._shared(patience)
            for execution in tuple(self._flying):
                before = execution.completed
                self._advance(execution, patience)
                moved = moved or execution.completed != before
                patience = None  # the rest wait for the first, which is the next to finish
            if moved:
                self._moved_ns = time.monotonic_ns()
            self._look_now_and_then()
        except BaseException:
            give_back(self.lock)
            raise
        self.lock.release()
        return moved

    def _shared(self, patience: Patience | None) -> Patience | None:
        """Bound what the thread may stay with one execution where others are in flight.

        A quarter of the time in which nothing has moved: they are late by no more.
        """
        if patience is not self._driving:
            return None
        still_ns = time.monotonic_ns() - self._moved_ns
        return self._driving._replace(total_ns=min(still_ns // 4, _SHARING_NS))

    def test(self, execution: Execution) -> bool:
        """Advance everything once and return whether ``execution`` has finished.

        Local; never blocks.

        Raises
        ------
        PeerError, BaseException
            What made it fail.
        """
        if not execution.finished:
            self.progress()
        if execution.finished and execution.error is not None:
            raise execution.error
        return execution.finished

    def wait(self, execution: Execution, timeout_s: float | None = None) -> None:
        """Drive the engine until ``execution`` has finished.

        Local.  The caller's buffers are free again once it has drained, which is
        now unless messages of the plan are optional.

        Parameters
        ----------
        execution : Execution
            Started before.
        timeout_s : float, optional
            The caller's patience; None waits as long as the execution's deadline.

        Raises
        ------
        TimeoutError
            After ``timeout_s``: the operation goes on and keeps its buffers.
        PeerLate
            When the execution's deadline has passed: it is dead, its world revoked.
        PeerLost, Revoked
            If ranks died or another rank gave up.
        BaseException
            Of the handler of a signal: the operation goes on without the caller and
            keeps its buffers, or is dead where it came between two lines of it.
        """
        self._until(execution, timeout_s, drains=False)

    def drain(self, execution: Execution, timeout_s: float | None = None) -> None:
        """Drive the engine until ``execution`` has drained; as `wait` otherwise."""
        self._until(execution, timeout_s, drains=True)

    def _until(self, execution: Execution, timeout_s: float | None, *, drains: bool) -> None:
        def is_over() -> bool:
            if execution.error is not None:
                return True
            return execution.drained if drains else execution.finished

        deadline = None if timeout_s is None else Deadline(timeout_s)
        times_ns = _CROWDED_NS if is_crowded() else (_WAITING_NS, _WAITING_NS)
        patience = Patience(*times_ns, 0, self._driving.wanted)
        try:
            over = wait(
                is_over,
                progress=partial(self.progress, patience),
                deadline=deadline,
            )
        except BaseException:
            self.leave(execution)
            raise
        if execution.error is not None:
            execution.bound.world.attendance.told = True  # the next call is refused, as theirs
            raise execution.error
        if not over:
            raise TimeoutError(
                f"{execution.operation}: not finished after {timeout_s:g} s; it goes on and keeps"
                " its buffers, wait for it again"
            )

    def leave(self, execution: Execution) -> None:
        """Let an execution go on whose caller was called away: the others wait for it.

        Local, harmless twice.  Where no thread may drive it, or it was not begun in
        full, they hear.
        """
        with self._claimed():
            if execution.finished:
                return
            if execution in self._flying and _has_threads():
                self._drive_alone(execution)
            else:
                self.fail(execution, Revoked(execution.operation))
                self._clear()  # what was not begun is free now

    def fail(self, execution: Execution, error: BaseException) -> None:
        """End an execution with an error and revoke its world.  Local."""
        with self.lock:
            try:
                execution.fail(error)
            finally:
                if execution.error is not None:
                    self._revoke_failed(execution)

    def _advance(self, execution: Execution, patience: Patience | None = None) -> None:
        try:
            execution.advance(patience)
        finally:
            if execution.error is not None:
                self._revoke_failed(execution)
            elif execution.drained:
                self._flying.remove(execution)

    def _revoke_failed(self, execution: Execution) -> None:
        """Revoke the world of a failed execution; keep its buffers until MPI lets go."""
        execution.announce()  # again, where a signal came while it failed
        if execution not in self._unfinished:
            self._unfinished.append(execution)
        if execution in self._flying:
            self._flying.remove(execution)
        execution.bound.world.revoke()

    def _look_now_and_then(self) -> None:
        self._rounds += 1
        if self._rounds % _LOOK_EVERY == 0:
            self._look()

    def _look(self) -> None:
        """Look at deadlines and abort words, and at requests of the dead."""
        for execution in tuple(self._flying):
            found = grounds(execution)
            if found is not None:
                self.fail(execution, found)
        for execution in self._flying[:1]:  # a kernel calls nothing of the library
            let_work(execution.bound.world)
        self._clear()

    def _clear(self) -> None:
        """Let go of the buffers that MPI has let go of."""
        self._unfinished = [execution for execution in self._unfinished if not execution.settled()]

    def end_revoked(self) -> None:
        """End what is in flight in revoked worlds; waits until nothing is written.

        Local.  A message that nobody takes may stay for ever; its buffer is kept.
        """

        def is_settled() -> bool:
            with self._claimed():
                for execution in tuple(self._flying):
                    if execution.bound.world.revoked:
                        self.fail(execution, Revoked(execution.operation))
                self._look()
                return not any(map(is_written, self._unfinished))

        wait(is_settled, polite=True)

    def end(self, world: World) -> None:
        """End what is in flight in a world whose memory is to go.  Local."""
        with self._claimed():
            for execution in self.flying_in(world):
                self.fail(execution, Revoked(execution.operation))

    def stop(self) -> None:
        """End the progress thread, if there is one.

        Local.  Called when the interpreter exits, before MPI is finalized.
        """
        thread = self._thread
        self._stopping = True
        self._wake_event.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)
        self._stopping = False

    def _drive_alone(self, execution: Execution) -> None:
        """Let the thread drive an execution to its end.  Harmless twice."""
        self._background.add(execution)
        execution.when_finished(self._background.discard)
        self._start_thread()

    def _start_thread(self) -> None:
        """Wake the thread, or make it."""
        self._wake_event.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="closeranks", daemon=True)
            self._thread.start()

    def _drive(self) -> None:
        """Drive the engine while executions that count on it are in flight.

        Then stay for a while: a new thread must wait for its turn behind those
        that compute, one that sleeps is woken at once.
        """
        wake_promptly()
        with prompt_switches():
            while True:
                wait(
                    lambda: not self._background or self._stopping,
                    progress=partial(self.progress, self._driving),
                    polite=True,
                )
                is_woken = self._wake_event.wait(0 if self._stopping else _STAYING_S)
                with self.lock:
                    self._wake_event.clear()
                    if self._stopping or not (is_woken or self._background):
                        self._thread = None
                        return


def _has_threads() -> bool:
    return MPI.Query_thread() >= MPI.THREAD_MULTIPLE


@cache
def engine() -> Engine:
    """Return this process's engine.  Local; any thread."""
    made = Engine()
    before_finalize(made.stop)
    return made


def make_way(world: World) -> bool:
    """Advance what is in flight, and let the library work, which kernels do not call.

    Local.

    Parameters
    ----------
    world : World
        Whose memory is used: nobody else hears there of ranks that die.

    Returns
    -------
    bool
        Whether anything of ours has moved.
    """
    driver = engine()
    moved = driver.progress()
    in_turn(driver.lock, _listen, world)
    return moved


def _listen(world: World) -> bool:
    """Let the library work, and ask it who has died; needs the engine's lock."""
    let_work(world)  # what is in flight may be kernels, too
    world.look()  # what is in flight may be of others, who all live
    return True
