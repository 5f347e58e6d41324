"""Run a bound plan in compiled code, as far as it goes.

`Fast` does what the reference,
`closeranks.collectives.engine.execution.Execution`, does with the same plan,
in the same order, and without the GIL: see
`closeranks.collectives.engine.compiled_loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from closeranks.collectives.engine import bound_plan as ways
from closeranks.collectives.engine import loop_layout as sweep
from closeranks.collectives.engine.execution import Execution
from closeranks.collectives.engine.execution_arrays import Layout, load_loop
from closeranks.collectives.engine.ignored_errors import QUIET
from closeranks.collectives.engine.mpi_handles import handle

if TYPE_CHECKING:
    from closeranks.collectives.engine.progress_answer import Patience

_MASK: Final = 2**64 - 1


class Fast(Execution):
    """One run of a bound plan on this rank, in compiled code.

    As `Execution`, whose parameters and attributes it has.
    """

    __slots__ = ("_kept", "_layout")

    def _lay_out(self) -> None:
        layout = self.bound.layout
        if layout is None:
            layout = self.bound.layout = Layout(self.bound)
        assert isinstance(layout, Layout)
        layout.reset(self.bound, self._base)
        self._layout = layout
        self._required = int(layout.state[sweep.REQUIRED])
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
