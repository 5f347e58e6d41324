"""Run a bound plan, a little at a time: in Python, or in compiled code.

An `Execution` is one run of a plan on this rank.  `Execution.advance` starts
every step that is ready, in the order of the steps' numbers, looks at what has
completed, and returns; it never blocks.  This interpreter is the reference:
what it does with a table is what every other one must do.

`Fast` does the same with the same plan, in the same order, without the GIL.
It runs in `closeranks.collectives.engine.compiled_loop`, as far as that goes.

Tags.  Messages travel on the world's own duplicate of the communicator (so an
epoch never meets another), with ``tag = (sequence mod window) * 2**20 +
slot``; `window` is as large as the library's MPI_TAG_UB allows.  An execution
starts only when the one ``window`` before it has drained on this rank: MPI
keeps the order of equal tags, so no execution takes another's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from closeranks.collectives.engine import bound_plan as ways
from closeranks.collectives.engine import loop_layout as sweep
from closeranks.collectives.engine.bound_plan import (
    COPY,
    DROPPED,
    LONG_RECEIVE,
    LONG_SEND,
    RECEIVE,
    REDUCE,
    SEND,
    Bound,
)
from closeranks.collectives.engine.deferred_blocks import DeferredBlocks
from closeranks.collectives.engine.error_translation import (
    QUIET,
    is_gone,
    is_over,
    quietly,
    test_some,
    translated,
)
from closeranks.collectives.engine.execution_arrays import ExecutionLayout, handle, load_loop
from closeranks.collectives.engine.progress_answer import Patience, Poll, ProgressAnswer
from closeranks.collectives.plans.block import OUTPUT
from closeranks.collectives.plans.identity import Identity
from closeranks.collectives.plans.schedule import Kind
from closeranks.comms.wait import Deadline

if TYPE_CHECKING:
    from closeranks.collectives.engine.progress_answer import Patience


Array = NDArray[Any]

#: Requests up to this number are tested one by one, more of them by Testsome.
_FEW: Final = 4


class Execution:
    """One run of a bound plan on this rank; local to make.

    Driven by `closeranks.collectives.engine.progress_engine.Engine`, whose lock
    every call of a method needs; attributes may be read without.

    Parameters
    ----------
    bound : Bound
        The plan and its memory; taken until the execution has drained.
    identity : Identity
        Equal on all ranks.
    priority : int
        Executions of a higher priority are advanced first.
    deadline : Deadline, optional
        The communicator's patience: when it expires the execution fails with
        `PeerLate` and its world is revoked.

    Attributes
    ----------
    finished : bool
        Whether the result may be used, or `error` says why there is none.
    drained : bool
        Whether all steps are done, so that the buffers are free again; may come
        later than ``finished`` where messages are optional.
    error : BaseException or None
        Why it failed.
    completed : int
        Steps done so far.
    operation : str
        Name of the operation that users know.
    kernel_s : float
        Seconds that kernels have taken so far.
    kernel_bytes : int
        Bytes that they have written.
    output : ndarray of uint8 or None
        The result, once finished, of a plan that sizes its output itself.
    sent : dict of int to int
        Bytes of messages whose size only the run tells, by the rank they went to.
    turn : int
        How many collectives with a deadline its world had begun before; or -1.
    """

    __slots__ = (
        "_admitted",
        "_advancing",
        "_base",
        "_callbacks",
        "_hooks",
        "_left",
        "_owners",
        "_pieces",
        "_polls",
        "_ready",
        "_requests",
        "_required",
        "_symbolic",
        "bound",
        "completed",
        "deadline",
        "done",
        "drained",
        "error",
        "finished",
        "identity",
        "kernel_bytes",
        "kernel_s",
        "operation",
        "output",
        "priority",
        "sent",
        "turn",
    )

    def __init__(
        self,
        bound: Bound,
        identity: Identity,
        *,
        priority: int = 0,
        deadline: Deadline | None = None,
    ) -> None:
        assert not bound.busy, "one execution at a time may use a bound plan"
        bound.busy = True
        self.bound, self.identity = bound, identity
        self.operation = bound.plan.problem.operation
        self.priority, self.deadline = priority, deadline
        self.finished = self.drained = False
        self.error: BaseException | None = None
        self.output: Array | None = None
        self.kernel_s, self.kernel_bytes = 0.0, 0
        self.sent: dict[int, int] = {}
        self.completed, self.turn = 0, -1
        self._base = bound.world.first_tag(identity.sequence)
        self._requests: list[MPI.Request] = []
        self._owners: list[int] = []
        self._polls: list[tuple[int, Poll]] = []
        self._hooks: dict[int, Callable[[], None]] = {}
        self._pieces: dict[int, int] = {}
        self._symbolic: DeferredBlocks | None = None
        self._callbacks: dict[Callable[[Execution], None], None] = {}
        self._advancing = self._admitted = False
        self._lay_out()

    def _lay_out(self) -> None:
        """Note what is ready and what every step waits for."""
        bound = self.bound
        self.done: bytearray | NDArray[np.int64] = bytearray(len(bound.need))
        self._left = bound.need.copy()
        self._ready = bound.first.copy()
        heapify(self._ready)
        self._required = len(self._left) - len(bound.optional)

    def __repr__(self) -> str:
        state = "failed" if self.error else "drained" if self.drained else "running"
        return (
            f"<{self.operation} {self.identity.epoch}.{self.identity.sequence}: {state},"
            f" {self.completed} of {len(self.bound.need)} steps>"
        )

    def when_finished(self, callback: Callable[[Execution], None]) -> None:
        """Call ``callback(self)`` once it has finished or failed; at once if it has.

        Local.  The callback runs in whichever thread makes the progress, under the
        engine's lock, and must not wait; the handler of a signal may let it run twice.
        """
        self._callbacks[callback] = None
        if self.finished:
            self.announce()

    def advance(self, patience: Patience | None = None) -> bool:
        """Do what can be done now, and return; never blocks.

        Parameters
        ----------
        patience : Patience, optional
            How long compiled code may wait for what is under way.

        Returns
        -------
        bool
            Whether the execution has finished.  An exception of a kernel, a
            reducer or the MPI library ends it: see `error`.
        """
        if self.drained or self._advancing or self.error is not None:
            return self.finished
        if not self._admitted:
            sequence, world, arrives = self.identity.sequence, self.bound.world, self.bound.arrives
            if sequence - next(iter(world.undrained), sequence) >= world.window:
                return False  # an execution that has not drained has the same tags
            if arrives is not None and not arrives():
                return False
        self._admitted = self._advancing = True
        try:
            if self._required == 0 and not self.finished:  # nothing to do, or nothing to wait for
                self._conclude()
            self._move(patience)
        except BaseException as error:  # kept, and raised by whoever waits
            self.fail(translated(error, self) if isinstance(error, Exception) else error)
            if self.announce() or not isinstance(error, Exception):
                raise  # of a signal: the result was there, or nobody waits
        finally:
            self._advancing = False
        return self.finished

    def _move(self, patience: Patience | None) -> None:
        """Start what is ready and look at what is under way until nothing moves."""
        del patience
        if self._ready:
            self._start_ready()
        while self._collect():
            self._start_ready()

    def _start_ready(self) -> None:
        """Start every ready step, lowest number first, until none is ready."""
        bound, ready = self.bound, self._ready
        how, payloads, peers, slots = bound.ways, bound.payloads, bound.peers, bound.slots
        traffic, base, reducer = bound.world.traffic, self._base, bound.reducer
        requests, owners, in_quiet = self._requests, self._owners, QUIET.run
        while ready:
            step = heappop(ready)
            way = how[step]
            if way == SEND:
                requests.append(traffic.Isend(payloads[step], peers[step], base + slots[step]))
                owners.append(step)
                continue
            if way == RECEIVE:
                requests.append(traffic.Irecv(payloads[step], peers[step], base + slots[step]))
                owners.append(step)
                continue
            if way == REDUCE:
                in_quiet(reducer, *payloads[step])  # type: ignore[arg-type]
            elif way == COPY:
                np.copyto(*payloads[step])
            elif way != DROPPED and not self._start_slowly(step, way):
                continue
            self._finish(step)

    def _start_slowly(self, step: int, way: int) -> bool:
        """Start a step that needs more than one call; True if it is done."""
        if way in (LONG_SEND, LONG_RECEIVE):
            pieces, packed, view = self.bound.payloads[step]
            if way == LONG_SEND and packed is not None:
                np.copyto(packed, view)
            self._pieces[step] = len(pieces)
            # Equal tags: MPI keeps the pieces in order.
            for piece in pieces:
                self.post(step, piece, sending=way == LONG_SEND)
            return False
        if self._symbolic is None:
            self._symbolic = DeferredBlocks(self.bound, self)
        poll = QUIET.run(self._symbolic.start, step)
        if poll is None:
            return self.bound.kinds[step] not in (Kind.SEND, Kind.RECEIVE)
        self._polls.append((step, poll))
        return False

    def post(self, step: int, spec: Any, *, sending: bool) -> None:
        """Post the message of a step; the step is done when the request is."""
        traffic, tag = self.bound.world.traffic, self.tag(step)
        start = traffic.Isend if sending else traffic.Irecv
        self.follow(step, start(spec, self.bound.peers[step], tag))

    def follow(self, step: int, request: MPI.Request) -> None:
        """Let ``step`` be done when ``request`` is."""
        self._requests.append(request)
        self._owners.append(step)

    def once_done(self, step: int, hook: Callable[[], None]) -> None:
        """Run ``hook`` when the request of ``step`` has completed."""
        self._hooks[step] = hook

    def tag(self, step: int) -> int:
        """Return the tag of a step's message."""
        return self._base + self.bound.slots[step]

    def _finish(self, step: int) -> None:
        """Note that a step is done; its followers may become ready."""
        self.done[step] = 1
        self.completed += 1
        left = self._left
        for later in self.bound.following[step]:
            remaining = left[later] - 1
            left[later] = remaining
            if remaining == 0:
                heappush(self._ready, later)
        if step not in self.bound.optional:
            self._required -= 1
        if self._required == 0 and not self.finished:
            self._conclude()
        elif self.completed == len(left):
            self._drain()

    def _collect(self) -> bool:
        """Look at what is under way; True if any step has become done."""
        arrived: list[int] = []
        requests, owners = self._requests, self._owners
        if len(requests) <= _FEW:
            for place in range(len(requests) - 1, -1, -1):
                if is_over(requests[place]):
                    arrived.append(owners.pop(place))
                    del requests[place]
        else:
            arrived = self._collect_many()
        if self._polls:
            arrived += self._look()
        for step in arrived:
            if step in self._pieces and not self._all_pieces(step):
                continue
            if step in self._hooks:
                self._hooks.pop(step)()
            self._finish(step)
        return bool(arrived)

    def _all_pieces(self, step: int) -> bool:
        """Count a piece of a long or strided message; True if it was the last."""
        left = self._pieces[step] - 1
        if left:
            self._pieces[step] = left
            return False
        del self._pieces[step]
        _, packed, view = self.bound.payloads[step]
        if packed is not None and self.bound.ways[step] == LONG_RECEIVE:
            np.copyto(view, packed)
        return True

    def _look(self) -> list[int]:
        """Look at everything that is no request; returns the steps that are done."""
        looks = [(poll(), step, poll) for step, poll in self._polls]
        self._polls = [(step, poll) for look, step, poll in looks if look == ProgressAnswer.WAITING]
        return [step for look, step, _ in looks if look == ProgressAnswer.DONE]

    def _collect_many(self) -> list[int]:
        if not (indices := test_some(self._requests)):
            return []
        arrived, gone = [self._owners[index] for index in indices], set(indices)
        kept = [index for index in range(len(self._owners)) if index not in gone]
        # In place: _start_ready holds on to these lists.
        self._requests[:] = [self._requests[index] for index in kept]
        self._owners[:] = [self._owners[index] for index in kept]
        return arrived

    def _conclude(self) -> None:
        """All that the result needs is done: tell whoever waits."""
        if self._symbolic is not None and self.bound.memory[OUTPUT] is None:
            self.output = self._symbolic.memory[OUTPUT]
        if self.bound.epilogue is not None and self.error is None:
            self.bound.epilogue()
        if self.completed == len(self.bound.need):
            self._drain()  # first: who is told may start the bound plan again
        self.announce()

    def announce(self) -> bool:
        """Tell that it has finished, again where a signal came between; True if well."""
        if self.deadline is not None:
            self.bound.world.attendance.leave(self.turn)
        self.finished = True
        for callback in tuple(self._callbacks):
            callback(self)
            self._callbacks.pop(callback, None)
        return self.error is None

    def _drain(self) -> None:
        self._symbolic = None
        self.bound.world.undrained.pop(self.identity.sequence, None)
        self.bound.release()
        self.drained = True  # last: what a signal ends before may be done again

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks whose messages are awaited, else those that take none of ours."""
        others = self._symbolic.members(self._waiting()) if self._symbolic else ()
        return self.peers(Kind.RECEIVE) or self.peers(Kind.SEND) or others

    def peers(self, kind: Kind) -> tuple[int, ...]:
        """Return whose messages of a kind are under way, ascending."""
        kinds, peers = self.bound.kinds, self.bound.peers
        return tuple(sorted({peers[step] for step in self._waiting() if kinds[step] == kind}))

    def _waiting(self) -> list[int]:
        return [*self._owners, *(step for step, _ in self._polls)]

    def fail(self, error: BaseException) -> None:
        """End it with an error; what is under way is cancelled where MPI can.  Local.

        Buffers stay bound until `settled`.  The caller revokes the world.
        """
        if self.error is not None or self.drained:
            return
        self.error = error
        for request, step in zip(self._requests, self._owners, strict=True):
            if self.bound.kinds[step] == Kind.RECEIVE:
                quietly(request.Cancel)
        if self._symbolic is not None:
            self._symbolic.cancel()
        self._polls.clear()
        self._ready.clear()
        if not self.finished:
            self._conclude()

    def settled(self) -> bool:
        """Whether MPI holds none of this execution's buffers any more; never blocks."""
        stays = [not is_gone(request) for request in self._requests]
        self._requests = list(compress(self._requests, stays))
        self._owners = list(compress(self._owners, stays))
        if not (self._requests or self.drained or self.is_held()):
            self._drain()
        return self.drained

    def is_held(self) -> bool:
        """Whether MPI has buffers by what is no request of a step; never blocks."""
        return self._symbolic is not None and self._symbolic.is_held()


_MASK: Final = 2**64 - 1


class Fast(Execution):
    """One run of a bound plan on this rank, in compiled code.

    As `Execution`, whose parameters and attributes it has.
    """

    __slots__ = ("_kept", "_layout")

    def _lay_out(self) -> None:
        layout = self.bound.layout
        if layout is None:
            layout = self.bound.layout = ExecutionLayout(self.bound)
        assert isinstance(layout, ExecutionLayout)
        if layout.attached != self.bound.attached:
            layout.follow_memory(self.bound)
        state = layout.state
        state[:], layout.steps[:] = layout.first_state, layout.first_steps
        state[sweep.TAG] = self._base
        self._layout = layout
        self._required = int(state[sweep.REQUIRED])
        self.done = layout.steps[sweep.DONE]
        self._ready = []
        #: Requests made in Python keep the memory of their messages.
        self._kept: list[MPI.Request] = []

    def _move(self, patience: Patience | None) -> None:
        layout = self._layout
        state, place, advance = layout.state, layout.place, load_loop()
        state[sweep.PATIENCE_NS] = 0
        if patience is not None:
            state[sweep.PATIENCE_NS : sweep.WANTED + 1] = patience
        while not self.drained and self.error is None:  # else the arrays are another's
            answer = advance(place)
            self.completed = int(state[sweep.COMPLETED])
            if answer == sweep.IDLE:
                return
            if answer == sweep.NEWS:
                self._tell()
            elif answer == sweep.FAILED:
                raise self._error()
            else:
                self._in_python(answer, int(state[sweep.STEP]))

    def _tell(self) -> None:
        """Note that the result is there, or that all is done, or both."""
        if not self.finished:
            self._conclude()
        elif self.completed == len(self.bound.need):
            self._drain()

    def _in_python(self, answer: int, step: int) -> None:
        """Do what the loop cannot, and say how it goes on."""
        layout = self._layout
        if answer == sweep.LOOK:
            layout.arrive(self._look())
        elif answer == sweep.HOOK:
            layout.steps[sweep.WATCHED, step] = 0
            self._hooks.pop(step)()
            layout.state[sweep.FINISH] = step
        elif self._start_in_python(step):
            layout.state[sweep.FINISH] = step
        layout.state[sweep.POLLS] = len(self._polls)

    def _start_in_python(self, step: int) -> bool:
        """Start one step; True if it is done."""
        way, payload = self.bound.ways[step], self.bound.payloads[step]
        if way == ways.REDUCE:
            QUIET.run(self.bound.reducer, *payload)  # type: ignore[arg-type]
        elif way == ways.COPY:
            np.copyto(*payload)
        elif way in (ways.SEND, ways.RECEIVE):
            self.post(step, payload, sending=way == ways.SEND)
            return False
        elif way in (ways.LONG_SEND, ways.LONG_RECEIVE):
            self._start_long(step, *payload, sending=way == ways.LONG_SEND)
            return False
        else:
            return self._start_slowly(step, way)
        return True

    def _start_long(self, step: int, pieces: Any, packed: Any, view: Any, *, sending: bool) -> None:
        if packed is not None and sending:
            np.copyto(packed, view)
        if packed is not None and not sending:
            self.once_done(step, partial(np.copyto, view, packed))
        for piece in pieces:
            self.post(step, piece, sending=sending)

    def follow(self, step: int, request: MPI.Request) -> None:
        """Let ``step`` be done when ``request`` is."""
        self._kept.append(request)
        self._layout.follow(step, handle(request))

    def once_done(self, step: int, hook: Callable[[], None]) -> None:
        """Run ``hook`` when the request of ``step`` has completed."""
        self._hooks[step] = hook
        self._layout.steps[sweep.WATCHED, step] = 1

    def _error(self) -> MPI.Exception:
        """Say what MPI meant by its code; which request failed stands in its status."""
        code = int(self._layout.state[sweep.CODE])
        if MPI.Get_error_class(code) == MPI.ERR_IN_STATUS:
            fine = (MPI.SUCCESS, MPI.ERR_PENDING)
            codes = [one for one in self._layout.error_codes() if one not in fine]
            code = codes[0] if codes else code
        return MPI.Exception(code)

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks whose messages are awaited, else those that take none of ours."""
        if self.error is None:
            self._owners = self._layout.under_way()[1]
        return super().awaited()

    def fail(self, error: BaseException) -> None:
        """End it with an error, as `Execution.fail`; requests are Python's from here on."""
        if self.error is None and not self.drained:
            handles, self._owners = self._layout.under_way()
            self._requests = [MPI.Request.fromhandle(one & _MASK) for one in handles]
        super().fail(error)


def execution(
    bound: Bound, identity: Identity, *, priority: int = 0, deadline: Deadline | None = None
) -> Execution:
    """Make an execution that the best interpreter at hand runs.

    Local.

    Parameters
    ----------
    bound, identity, priority, deadline
        As for `Execution`.

    Returns
    -------
    Execution
        To be started on the engine.
    """
    kind = Fast if bound.world.compiled else Execution
    made = kind(bound, identity, priority=priority, deadline=deadline)
    if deadline is not None:  # a reduction that is new here was compiled meanwhile
        deadline.restart()
    return made
