"""The compiled loop over a table: messages, copies and sums without the GIL.

`advance` runs the steps of `closeranks.collectives.engine.execution.Execution`
in the same order: start the ready steps, lowest number first; look at the
requests; finish the steps that have arrived; begin anew, until nothing moves.
The loop calls MPI through function pointers.  It hands the number of a step
that needs Python (a kernel, an event, a leaf, a register) back, and is entered
again after that step.

The first part of the file makes intrinsics of C functions at known addresses;
the second part is the loop.  Importing this module imports Numba; only
`closeranks.comms.jit.code_cache` does, to compile it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from closeranks.collectives.engine import loop_layout as at
from closeranks.comms.jit.atomics import array_at, ints_at, table_at


def _calling(result: Any) -> Callable[..., Any]:
    """Generate a call of the C function at the address that comes first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        address, *given = arguments
        returned = context.get_value_type(result)
        kind = ir.FunctionType(returned, [one.type for one in given])
        return builder.call(builder.inttoptr(address, kind.as_pointer()), given)

    return generate


def _seconds(typing: Any, function: Any) -> Any:
    """``double function(void)``."""
    del typing
    return types.float64(function), _calling(types.float64)


def _call0(typing: Any, function: Any) -> Any:
    """``int function(void)``."""
    del typing
    return types.int32(function), _calling(types.int32)


def _call1(typing: Any, function: Any, a: Any) -> Any:
    """``int function(a)``."""
    del typing
    return types.int32(function, a), _calling(types.int32)


def _call3(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    """``f(a, b, c)``; a result is ignored."""
    del typing
    return types.int64(function, a, b, c), _calling(types.int64)


def _ask3(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    """``int function(a, b, c)``."""
    del typing
    return types.int32(function, a, b, c), _calling(types.int32)


def _call5(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """``int function(a, ..., e)``."""
    del typing
    return types.int32(function, a, b, c, d, e), _calling(types.int32)


def _call7(
    typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any
) -> Any:
    """``int function(a, ..., g)``."""
    del typing
    return types.int32(function, a, b, c, d, e, f, g), _calling(types.int32)


def _word(typing: Any, address: Any) -> Any:
    """Read an int64 that another thread writes."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "monotonic", 8)

    return types.int64(address), generate


seconds: Final[Any] = intrinsic(_seconds)
call0: Final[Any] = intrinsic(_call0)
call1: Final[Any] = intrinsic(_call1)
call3: Final[Any] = intrinsic(_call3)
ask3: Final[Any] = intrinsic(_ask3)
call5: Final[Any] = intrinsic(_call5)
call7: Final[Any] = intrinsic(_call7)
word: Final[Any] = intrinsic(_word)


Numbers = NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    made: Any = numba.njit(error_model="numpy")(function)
    return cast("_F", made)


@_compiled
def push(state: Numbers, heap: Numbers, step: int) -> None:
    """Note that a step is ready."""
    place = state[at.N_READY]
    state[at.N_READY] = place + 1
    while place > 0:
        above = (place - 1) >> 1
        if heap[above] <= step:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = step


@_compiled
def pop(state: Numbers, heap: Numbers) -> int:
    """Take the ready step of the lowest number."""
    n = state[at.N_READY] - 1
    state[at.N_READY] = n
    least, last, place = heap[0], heap[n], 0
    while True:
        below = 2 * place + 1
        if below >= n:
            break
        if below + 1 < n and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= last:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = last
    return least  # type: ignore[no-any-return]


@_compiled
def finish(state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, step: int) -> bool:
    """Note that a step is done; True if Python has news to pass on."""
    steps[at.DONE, step] = 1
    state[at.COMPLETED] += 1
    first = rows[step, at.NEXT]
    for place in range(first, first + rows[step, at.N_NEXT]):
        later = following[place]
        left = steps[at.LEFT, later] - 1
        steps[at.LEFT, later] = left
        if left == 0:
            push(state, steps[at.READY], later)
    state[at.REQUIRED] -= 1 - rows[step, at.OPTIONAL]
    if state[at.REQUIRED] == 0 and state[at.TOLD] == 0:
        state[at.TOLD] = 1
        return True
    return bool(state[at.COMPLETED] == len(rows))


@_compiled
def post(state: Numbers, row: Numbers, flights: Numbers, requests: Any, step: int) -> int:
    """Post a message, in pieces where it is cut; returns how many, or -1."""
    function = state[at.ISEND]
    if row[at.WAY] == at.RECEIVE or row[at.WAY] == at.PACKED_RECEIVE:
        function = state[at.IRECV]
    address, left, pieces = row[at.ADDRESS], row[at.NBYTES], 0
    while left > 0 or pieces == 0:
        size = min(left, row[at.PIECE])
        place = state[at.N_REQUESTS]
        code = call7(
            function,
            address,
            np.int32(size),
            requests[at.BYTE],
            np.int32(row[at.PEER]),
            np.int32(state[at.TAG] + row[at.SLOT]),
            requests[at.COMM],
            state[at.REQUESTS] + place * requests.itemsize,
        )
        if code != 0:
            state[at.CODE] = code
            return -1
        flights[at.OWNERS, place] = step
        state[at.N_REQUESTS] = place + 1
        pieces += 1
        address += size
        left -= size
    return pieces


@_compiled
def copy(state: Numbers, row: Numbers) -> None:
    """Copy runs of bytes; the two sides of one run may overlap."""
    source, target = row[at.SOURCE], row[at.TARGET]
    for _ in range(row[at.RUNS]):
        call3(state[at.MEMMOVE], target, source, row[at.RUN_BYTES])
        source += row[at.SOURCE_GAP]
        target += row[at.TARGET_GAP]


@_compiled
def start(
    state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, flights: Numbers,
    requests: Any,
) -> int:  # fmt: skip
    """Start every ready step, lowest number first."""
    while state[at.N_READY] > 0:
        step = pop(state, steps[at.READY])
        row = rows[step]
        way = row[at.WAY]
        if way == at.PYTHON:
            state[at.STEP] = step
            return at.ASK
        if way <= at.PACKED_RECEIVE:
            if way == at.PACKED_SEND:
                copy(state, row)
            pieces = post(state, row, flights, requests, step)
            if pieces < 0:
                return at.FAILED
            steps[at.PIECES, step] = pieces
            continue
        if way == at.REDUCE:
            call3(state[at.COMBINE], row[at.SOURCE], row[at.TARGET], row[at.ITEMS])
        elif way == at.COPY:
            copy(state, row)
        if finish(state, rows, following, steps, step):
            return at.NEWS
    return at.IDLE


@_compiled
def inquire(state: Numbers, flights: Numbers, requests: Any, counts: NDArray[np.int32]) -> bool:
    """Look at all requests once, and touch none that is under way."""
    arrived, kept, code = 0, 0, np.int32(0)
    for place in range(state[at.N_REQUESTS]):
        request, owner = requests[at.FIRST + place], flights[at.OWNERS, place]
        counts[0] = 0
        if code == 0:
            code = ask3(state[at.INQUIRE], request, state[at.COUNTS], state[at.STATUSES])
        if code == 0 and counts[0] != 0:
            here = state[at.REQUESTS] + place * requests.itemsize
            code = ask3(state[at.RELEASE], here, state[at.COUNTS], state[at.STATUSES])
            flights[at.ARRIVED, arrived] = owner
            arrived += 1
        else:
            requests[at.FIRST + kept] = request
            flights[at.OWNERS, kept] = owner
            kept += 1
    state[at.N_REQUESTS], state[at.N_ARRIVED], state[at.CODE] = kept, arrived, code
    return bool(code == 0)


@_compiled
def test(state: Numbers, flights: Numbers, requests: Any, counts: NDArray[np.int32]) -> bool:
    """Look at all requests once; False if MPI says that one failed."""
    n = state[at.N_REQUESTS]
    state[at.N_ARRIVED] = 0
    state[at.CURSOR] = 0
    if n == 0:
        return True
    if state[at.INQUIRE] != 0:
        return inquire(state, flights, requests, counts)
    counts[0] = 0
    code = call5(
        state[at.TESTSOME], np.int32(n), state[at.REQUESTS], state[at.COUNTS], state[at.COUNTS] + 4,
        state[at.STATUSES],
    )  # fmt: skip
    arrived = max(counts[0], 0)  # MPI_UNDEFINED is negative
    for place in range(arrived):
        flights[at.ARRIVED, place] = flights[at.OWNERS, counts[1 + place]]
    if arrived > 0:
        kept = 0
        for place in range(n):
            request = requests[at.FIRST + place]
            if request != requests[at.NULL]:
                requests[at.FIRST + kept] = request
                flights[at.OWNERS, kept] = flights[at.OWNERS, place]
                kept += 1
        state[at.N_REQUESTS] = kept
    state[at.N_ARRIVED] = arrived
    state[at.CODE] = code
    return bool(code == 0)


@_compiled
def take(
    state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, flights: Numbers
) -> int:
    """Finish the steps that have arrived."""
    while state[at.CURSOR] < state[at.N_ARRIVED]:
        step = flights[at.ARRIVED, state[at.CURSOR]]
        state[at.CURSOR] += 1
        steps[at.PIECES, step] -= 1
        if steps[at.PIECES, step] > 0:
            continue
        if rows[step, at.WAY] == at.PACKED_RECEIVE:
            copy(state, rows[step])
        if steps[at.WATCHED, step] != 0:
            state[at.STEP] = step
            return at.HOOK
        if finish(state, rows, following, steps, step):
            return at.NEWS
    return at.IDLE


@_compiled
def stay(state: Numbers, entered: float) -> bool:
    """Say whether to look again, after a pause for others where that is due."""
    if state[at.PATIENCE_NS] == 0 or state[at.N_REQUESTS] == 0 or word(state[at.WANTED]) != 0:
        return False
    now = seconds(state[at.CLOCK])
    if (now - entered) * 1e9 > state[at.PATIENCE_NS]:
        return False
    if state[at.PAUSE_US] == 0:
        if (now - entered) * 1e9 >= state[at.SPIN_NS]:
            call0(state[at.YIELD])
        return True
    waited_us = np.int64(now * 1e6) - state[at.SINCE]
    if waited_us * 1000 >= state[at.SPIN_NS]:
        # A quarter of what it has waited: late by no more than that, and soon asleep.  A
        # sixteenth of a long wait: looks are what a program that computes pays most for.
        pause_us = max(
            min(waited_us // 4, state[at.PAUSE_US]),
            min(waited_us // 16, at.LONG_PAUSES * state[at.PAUSE_US]),
        )
        call1(state[at.SLEEP], np.int32(max(pause_us, 1)))
    return True


@_compiled
def advance(
    state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, flights: Numbers,
    requests: Any, counts: NDArray[np.int32],
) -> int:  # fmt: skip
    """Do what can be done, until nothing moves or Python is needed.

    Local; holds the engine's lock and not the GIL.  The arrays are those of
    `closeranks.collectives.engine.execution_arrays.ExecutionLayout`.  Entered
    again, the loop goes on where it was: ``state[PHASE]`` says where::

                       entered by Python            answers
                             |
                             | FINISH >= 0:         NEWS
                             | that step is done
                             v
        +-----------------> START  start the        ASK NEWS FAILED
        |                    |     ready steps
        |                    | none is ready
        |                    v
        |    +-------------> TEST  look at all      FAILED
        |    | nothing has   |     requests once    IDLE if patience is over
        |    | arrived: pause|
        |    +---------------+
        |                    | steps have arrived,  LOOK if POLLS > 0
        |                    | or POLLS > 0
        |                    v
        |                   TAKE   finish them      HOOK NEWS
        |                    |
        +--------------------+ if none had arrived, IDLE, and TEST comes next

    ======== ==================================================================
    phase    cells of ``state`` that it writes
    ======== ==================================================================
    entry    FINISH; by `finish`: COMPLETED, REQUIRED, TOLD, N_READY
    START    N_READY, N_REQUESTS, STEP, CODE, PHASE; those of `finish`
    TEST     N_ARRIVED, N_REQUESTS, CURSOR, CODE, SINCE, PHASE
    TAKE     CURSOR, STEP, PHASE; those of `finish`
    ======== ==================================================================

    Returns
    -------
    int
        `IDLE` ... `FAILED`.
    """
    # The phases stand here, not in functions: with them the loop takes a third longer.
    entered = -1.0  # when it began to look in vain, since steps were started last
    if state[at.FINISH] >= 0:
        step = state[at.FINISH]
        state[at.FINISH] = -1
        if finish(state, rows, following, steps, step):
            return at.NEWS
    while True:
        if state[at.PHASE] == at.START:
            answer = start(state, rows, following, steps, flights, requests)
            if answer != at.IDLE:
                return answer
            state[at.PHASE], entered = at.TEST, -1.0
        elif state[at.PHASE] == at.TEST:
            if not test(state, flights, requests, counts):
                return at.FAILED
            if state[at.N_ARRIVED] > 0 and state[at.SINCE] > 0:  # the next one may take as long
                now_us = np.int64(seconds(state[at.CLOCK]) * 1e6)
                state[at.SINCE] = now_us - (now_us - state[at.SINCE]) // 4
            if state[at.N_ARRIVED] > 0 or state[at.POLLS] > 0:
                state[at.PHASE] = at.TAKE
                if state[at.POLLS] > 0:
                    return at.LOOK
                continue
            # Nothing has arrived: begin to wait, or look again.
            if state[at.PATIENCE_NS] > 0 and entered < 0:
                entered = seconds(state[at.CLOCK])
                if state[at.SINCE] == 0:
                    state[at.SINCE] = np.int64(entered * 1e6)
            if not stay(state, entered):
                return at.IDLE
        else:
            answer = take(state, rows, following, steps, flights)
            if answer != at.IDLE:
                return answer
            state[at.PHASE] = at.START
            # The phase was there for Python's polls alone, and none of them has arrived.
            if state[at.N_ARRIVED] == 0:
                state[at.PHASE] = at.TEST
                return at.IDLE


@_compiled
def _enter(frame_at: int, requests: Any, counts: Any) -> int:
    """Run `advance` on the arrays of a frame, see `FRAME`."""
    frame = array_at(frame_at, at.FRAME)
    n = frame[at.STEPS]
    return advance(
        array_at(frame[at.AT_STATE], at.STATES),
        table_at(frame[at.AT_ROWS], n, at.WIDTH),
        array_at(frame[at.AT_FOLLOWING], frame[at.SUCCESSORS]),
        table_at(frame[at.AT_STEPS], at.ROWS, n),
        table_at(frame[at.AT_FLIGHTS], 2, frame[at.FLIGHTS]),
        requests,
        counts,
    )


def _advance_wide(frame_at: int) -> int:
    """Advance a plan whose handles are pointers, as Open MPI's."""
    frame = array_at(frame_at, at.FRAME)
    requests = array_at(frame[at.AT_REQUESTS], frame[at.N_HANDLES])
    return _enter(frame_at, requests, ints_at(frame[at.AT_COUNTS], frame[at.N_HANDLES]))


def _advance_narrow(frame_at: int) -> int:
    """Advance a plan whose handles are ints, as MPICH's."""
    frame = array_at(frame_at, at.FRAME)
    requests = ints_at(frame[at.AT_REQUESTS], frame[at.N_HANDLES])
    return _enter(frame_at, requests, ints_at(frame[at.AT_COUNTS], frame[at.N_HANDLES]))


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give a function that Python calls, "wide" or "narrow", and its signature."""
    function = _advance_wide if name == "wide" else _advance_narrow
    return function, types.int64(types.int64)
