"""Bound plans that serve calls of many counts.

Plans of one algorithm have the same steps for many counts.  A `CountPlan`
holds those steps, and how their numbers follow from the count.  A `Refilled`
is a bound plan of such steps: one compiled pass writes its numbers for the
count and the memory of the next call.  That takes a few microseconds, where a
plan that is written and bound anew takes hundreds.

Compiled code runs all its steps.  So nothing is cut into views for Python, and
all the scratch is one array.  A call whose steps need Python is refused, and
gets a bound plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.engine.bound_plan import NOWHERE, Bound
from closeranks.collectives.engine.execution_arrays import ExecutionLayout, combine_of
from closeranks.collectives.engine.interpreter import REFILL
from closeranks.collectives.plans import table_columns as columns
from closeranks.collectives.plans.block import INPUT, OUTPUT
from closeranks.collectives.plans.table_columns import Kind
from closeranks.collectives.reduction.op import Reducer
from closeranks.collectives.refill import refill_layout as at
from closeranks.collectives.refill.count_plan import CountPlan
from closeranks.comms.jit import code_cache
from closeranks.comms.jit.python_builtin import function_at
from closeranks.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[Any]
Numbers = NDArray[np.int64]
_NONE: Final = (0, 0)


@cache
def load_refill() -> Callable[[int], int]:
    """Load the compiled pass, compiled if need be.  Local."""
    return function_at(code_cache.address_of(*REFILL), 1, "int")


class Refilled(Bound):
    """A bound plan whose numbers are written anew for each count.

    Local.  To be filled before it is run.

    Parameters
    ----------
    shared : CountPlan
        Its steps.
    dtype : numpy dtype
        The element.
    reducer : Reducer or None
        What REDUCE steps do; of the same name and type in all calls.

    Attributes
    ----------
    count : int
        For which count it is filled, -1 for none.  ``plan`` may be of another one.
    sent : dict of str to int
        Level -> bytes that this rank sends.
    weight : int
        Bytes of the caller's memory and of the scratch.
    memory : list of ndarray or None
        The caller's input and output, and all scratch.
    """

    def __init__(self, shared: CountPlan, dtype: np.dtype[Any], reducer: Reducer | None) -> None:
        self.count, self.weight, self.sent = -1, 0, dict[str, int]()
        given = shared.steps.table
        table = replace(given, rows=given.rows.copy(), buffers=given.buffers.copy())
        super().__init__(
            shared.plan, shared.world.rank, input=None, output=None, dtype=dtype, reducer=reducer,
            world=shared.world, table=table, keeps=shared,
        )  # fmt: skip
        self._levels = shared.world.topology.levels
        kinds = table.rows[:, columns.KIND]
        self._room = int((kinds <= Kind.RECEIVE).sum())
        self._sent = np.zeros(len(self._levels) + 1, np.int64)
        self._frame = np.zeros(at.FRAME, np.int64)
        self._cells = self._frame.data
        self._write_frame(shared)
        self._lay_out()
        self._run, self._at = load_refill(), self._frame.ctypes.data

    def refill(self, count: int, given: Array | None, taken: Array | None) -> int:
        """Write the numbers for a count, and for the caller's memory.

        Local.  Nothing is done if they are there.

        Parameters
        ----------
        count : int
            Elements, as the plan counts them.
        given, taken : ndarray, 1-D, dtype uint8, or None
            Input and output.

        Returns
        -------
        int
            `DONE` if it may run; `OTHER` if this count has other steps; `REFUSED`
            if Python must run one.
        """
        # As `place_of`, whose file a call need not enter.
        places = (
            _NONE if given is None else (given.__array_interface__["data"][0], given.nbytes),
            _NONE if taken is None else (taken.__array_interface__["data"][0], taken.nbytes),
        )
        if count != self.count or places != self.places:
            self.count, cells = -1, self._cells
            cells[at.COUNT] = count
            cells[at.INPUT], cells[at.INPUT_BYTES] = places[0]
            cells[at.OUTPUT], cells[at.OUTPUT_BYTES] = places[1]
            answer = self._run(self._at)
            if answer == at.GROW:
                self._grow()
                answer = self._run(self._at)
            if answer != at.DONE:
                return answer
            self.sent = {n: b for n, b in zip(self._levels, self._sent.tolist(), strict=False) if b}
            self.weight = places[0][1] + places[1][1] + cells[at.SCRATCH_BYTES]
            self.count, self.places = count, places
        self.memory[INPUT], self.memory[OUTPUT] = self._given = given, taken
        return at.DONE

    def release(self) -> None:
        """End an execution; another may begin.  Local."""
        if self.lent:
            self.memory[INPUT] = self.memory[OUTPUT] = None
            self.places, self._given = (NOWHERE, NOWHERE), (None, None)
            self.epilogue = self.arrives = None
        self.busy = False  # last: another thread may begin at once

    def _allocated(self) -> list[Array | None]:
        return [None, None, np.empty(0, np.uint8)]

    def _attach(self, input: Array | None, output: Array | None, steps: Sequence[int]) -> None:
        del steps
        self.places = (NOWHERE, NOWHERE)
        if self.count >= 0 and self.refill(self.count, input, output) != at.DONE:
            raise UsageError(
                str(self.plan), "Python must run a step on this memory", "bind another plan"
            )

    def _grow(self) -> None:
        """Make the room that the last refill wanted, and some more."""
        cells = self._cells
        needed = cells[at.NEEDED_BYTES]
        if needed > cells[at.SCRATCH_BYTES]:
            needed += needed // 8 // at.LINE * at.LINE
            self.memory[2] = scratch = np.empty(needed + at.LINE, np.uint8)
            cells[at.SCRATCH] = -(-scratch.ctypes.data // at.LINE) * at.LINE
            cells[at.SCRATCH_BYTES] = needed
        if cells[at.NEEDED_ROOM] > self._room:
            self._room = max(cells[at.NEEDED_ROOM], 2 * self._room)
            self._lay_out()

    def _lay_out(self) -> None:
        """Make the arrays of the compiled loop."""
        self.layout = made = _Layout(self, self._room)
        self._cells[at.ROOM], self._cells[at.AT_ROWS] = self._room, made.rows.ctypes.data

    def _write_frame(self, shared: CountPlan) -> None:
        """Tell the refill where all arrays lie."""
        steps, table, frame = shared.steps, self.table, self._frame
        self._values = np.zeros(len(steps.entries), np.int64)
        self._addresses = np.zeros(len(table.buffers), np.int64)
        frame[at.ITEMSIZE], frame[at.ALIGNMENT] = self.dtype.itemsize, self.dtype.alignment
        frame[at.COMBINES] = combine_of(self) != 0
        for array, address, length in (
            (steps.entries, at.AT_ENTRIES, at.N_ENTRIES),
            (steps.conditions, at.AT_CONDITIONS, at.N_CONDITIONS),
            (steps.cells, at.AT_CELLS, at.N_CELLS),
            (steps.sizes, at.AT_SIZES, at.N_SIZES),
            (table.rows, at.AT_TABLE, at.N_STEPS),
            (table.buffers, at.AT_BUFFERS, at.N_BUFFERS),
            (self._sent, at.AT_SENT, at.N_LEVELS),
        ):
            frame[address], frame[length] = array.ctypes.data, len(array)
        for array, address in (
            (self._values, at.AT_VALUES), (self._addresses, at.AT_PLACES),
            (shared.longest, at.AT_LONGEST), (shared.levels, at.AT_LEVELS),
        ):  # fmt: skip
            frame[address] = array.ctypes.data


class _Layout(ExecutionLayout):
    """The arrays of the compiled loop; the refill writes what follows from the count."""

    def __init__(self, bound: Refilled, room: int) -> None:
        self._most = room
        super().__init__(bound)

    def _write_rows(self, bound: Bound) -> None:
        self.attached = bound.attached
        self._write_graph(bound.table.rows)

    def _room(self) -> int:
        return self._most
