"""The compiled loop over a table: sends, receives, copies, adds, without the GIL.

`advance` does what `closeranks.collectives.execute.Execution` does with the
same steps, in the same order: start what is ready, lowest number first; look
at the requests; finish what has arrived; again, until nothing moves.  MPI is
called through function pointers.  Whatever needs Python (a kernel, an event, a
leaf, a register) is handed back by its number, and the loop is entered again
after it.

The only module that imports Numba at its top; it is imported when the first
plan runs.  All places and intrinsics stand in this file because the compiled
code is kept on disk and made anew only when this file changes.
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

Numbers = NDArray[np.int64]
_F = TypeVar("_F", bound=Callable[..., Any])

#: Places in ``state``.  What changes during a run: FINISH is a step that Python has run
#: and that is done, or -1; STEP one that is handed back; POLLS how many things that are
#: no requests Python looks at; CODE what MPI returned.
PHASE, FINISH, STEP, COMPLETED, REQUIRED, TOLD, N_READY, N_REQUESTS = range(8)
N_ARRIVED, CURSOR, POLLS, CODE, TAG = range(8, 13)
#: See `closeranks.collectives.look.Patience`.
PATIENCE_NS, SPIN_NS, PAUSE_US, WANTED = range(13, 17)
#: Addresses of functions, and of arrays that MPI writes.
ISEND, IRECV, TESTSOME, MEMMOVE, YIELD, SLEEP, CLOCK, COMBINE = range(17, 25)
REQUESTS, COUNTS, STATUSES = range(25, 28)
#: When the wait for messages began, in microseconds of the clock; 0 if nobody has waited.
SINCE, STATES = range(28, 30)

#: Columns of ``rows``, one row a step.  A message: its address, its length, that of a piece.
WAY, PEER, SLOT, OPTIONAL, NEXT, N_NEXT, ADDRESS, NBYTES, PIECE = range(9)
#: A copy or a reduction: from, to, how many items; a copy has so many runs of so many
#: bytes, so far apart on either side.
SOURCE, TARGET, ITEMS, RUNS, RUN_BYTES, SOURCE_GAP, TARGET_GAP, WIDTH = range(9, 17)

#: Ways of a step; messages first.
PYTHON, SEND, RECEIVE, PACKED_SEND, PACKED_RECEIVE, REDUCE, COPY, NOTHING = range(8)

#: Rows of ``steps``, one column a step: READY is a heap; WATCHED says that Python has
#: something to do when the step arrives.
LEFT, READY, PIECES, WATCHED, DONE, ROWS = range(6)

#: Rows of ``flights``: whose each request is, and who has arrived.
OWNERS, ARRIVED = range(2)

#: First in ``requests``: handles of the communicator, of MPI_BYTE and of no request.
COMM, BYTE, NULL, FIRST = range(4)

#: The longest pause, after a wait of 16 times that, in `PAUSE_US`.
LONG_PAUSES = 5
#: Phases.
START, TEST, TAKE = range(3)

#: Answers: nothing can be done now; the result is there or all is done; Python starts
#: STEP; it does what is to be done when STEP arrives; it looks at its polls; MPI said CODE.
IDLE, NEWS, ASK, HOOK, LOOK, FAILED = range(6)


def _compiled(function: _F) -> _F:
    made: Any = numba.njit(cache=True, nogil=True)(function)
    return cast("_F", made)


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
    """``f(a, b, c)``, whose result, if any, nobody reads."""
    del typing
    return types.int64(function, a, b, c), _calling(types.int64)


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
call5: Final[Any] = intrinsic(_call5)
call7: Final[Any] = intrinsic(_call7)
word: Final[Any] = intrinsic(_word)


@_compiled
def push(state: Numbers, heap: Numbers, step: int) -> None:
    """Note that a step is ready."""
    place = state[N_READY]
    state[N_READY] = place + 1
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
    n = state[N_READY] - 1
    state[N_READY] = n
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
    """Note that a step is done; True if Python has somebody to tell."""
    steps[DONE, step] = 1
    state[COMPLETED] += 1
    first = rows[step, NEXT]
    for place in range(first, first + rows[step, N_NEXT]):
        later = following[place]
        left = steps[LEFT, later] - 1
        steps[LEFT, later] = left
        if left == 0:
            push(state, steps[READY], later)
    state[REQUIRED] -= 1 - rows[step, OPTIONAL]
    if state[REQUIRED] == 0 and state[TOLD] == 0:
        state[TOLD] = 1
        return True
    return bool(state[COMPLETED] == len(rows))


@_compiled
def post(state: Numbers, row: Numbers, flights: Numbers, requests: Any, step: int) -> int:
    """Post a message, in pieces where it is cut; returns how many, or -1."""
    function = state[ISEND]
    if row[WAY] == RECEIVE or row[WAY] == PACKED_RECEIVE:
        function = state[IRECV]
    address, left, pieces = row[ADDRESS], row[NBYTES], 0
    while left > 0 or pieces == 0:
        size = min(left, row[PIECE])
        place = state[N_REQUESTS]
        code = call7(
            function,
            address,
            np.int32(size),
            requests[BYTE],
            np.int32(row[PEER]),
            np.int32(state[TAG] + row[SLOT]),
            requests[COMM],
            state[REQUESTS] + place * requests.itemsize,
        )
        if code != 0:
            state[CODE] = code
            return -1
        flights[OWNERS, place] = step
        state[N_REQUESTS] = place + 1
        pieces += 1
        address += size
        left -= size
    return pieces


@_compiled
def copy(state: Numbers, row: Numbers) -> None:
    """Copy runs of bytes; the two sides of one run may overlap."""
    source, target = row[SOURCE], row[TARGET]
    for _ in range(row[RUNS]):
        call3(state[MEMMOVE], target, source, row[RUN_BYTES])
        source += row[SOURCE_GAP]
        target += row[TARGET_GAP]


@_compiled
def start(
    state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, flights: Numbers,
    requests: Any,
) -> int:  # fmt: skip
    """Start every ready step, lowest number first."""
    while state[N_READY] > 0:
        step = pop(state, steps[READY])
        row = rows[step]
        way = row[WAY]
        if way == PYTHON:
            state[STEP] = step
            return ASK
        if way <= PACKED_RECEIVE:
            if way == PACKED_SEND:
                copy(state, row)
            pieces = post(state, row, flights, requests, step)
            if pieces < 0:
                return FAILED
            steps[PIECES, step] = pieces
            continue
        if way == REDUCE:
            call3(state[COMBINE], row[SOURCE], row[TARGET], row[ITEMS])
        elif way == COPY:
            copy(state, row)
        if finish(state, rows, following, steps, step):
            return NEWS
    return IDLE


@_compiled
def test(state: Numbers, flights: Numbers, requests: Any, counts: NDArray[np.int32]) -> bool:
    """Look at all requests once; False if MPI says that one failed."""
    n = state[N_REQUESTS]
    state[N_ARRIVED] = 0
    state[CURSOR] = 0
    if n == 0:
        return True
    counts[0] = 0
    code = call5(
        state[TESTSOME], np.int32(n), state[REQUESTS], state[COUNTS], state[COUNTS] + 4,
        state[STATUSES],
    )  # fmt: skip
    arrived = max(counts[0], 0)  # MPI_UNDEFINED is negative
    for place in range(arrived):
        flights[ARRIVED, place] = flights[OWNERS, counts[1 + place]]
    if arrived > 0:
        kept = 0
        for place in range(n):
            request = requests[FIRST + place]
            if request != requests[NULL]:
                requests[FIRST + kept] = request
                flights[OWNERS, kept] = flights[OWNERS, place]
                kept += 1
        state[N_REQUESTS] = kept
    state[N_ARRIVED] = arrived
    state[CODE] = code
    return bool(code == 0)


@_compiled
def take(
    state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, flights: Numbers
) -> int:
    """Finish the steps that have arrived."""
    while state[CURSOR] < state[N_ARRIVED]:
        step = flights[ARRIVED, state[CURSOR]]
        state[CURSOR] += 1
        steps[PIECES, step] -= 1
        if steps[PIECES, step] > 0:
            continue
        if rows[step, WAY] == PACKED_RECEIVE:
            copy(state, rows[step])
        if steps[WATCHED, step] != 0:
            state[STEP] = step
            return HOOK
        if finish(state, rows, following, steps, step):
            return NEWS
    return IDLE


@_compiled
def stay(state: Numbers, entered: float) -> bool:
    """Say whether to look again, after a pause for others where that is due."""
    if state[PATIENCE_NS] == 0 or state[N_REQUESTS] == 0 or word(state[WANTED]) != 0:
        return False
    now = seconds(state[CLOCK])
    if (now - entered) * 1e9 > state[PATIENCE_NS]:
        return False
    if state[PAUSE_US] == 0:
        if (now - entered) * 1e9 >= state[SPIN_NS]:
            call0(state[YIELD])
        return True
    waited_us = np.int64(now * 1e6) - state[SINCE]
    if waited_us * 1000 >= state[SPIN_NS]:
        # A quarter of what it has waited: late by no more than that, and soon asleep.  A
        # sixteenth of a long wait: looks are what a program that computes pays most for.
        pause_us = max(
            min(waited_us // 4, state[PAUSE_US]),
            min(waited_us // 16, LONG_PAUSES * state[PAUSE_US]),
        )
        call1(state[SLEEP], np.int32(max(pause_us, 1)))
    return True


@_compiled
def advance(
    state: Numbers, rows: Numbers, following: Numbers, steps: Numbers, flights: Numbers,
    requests: Any, counts: NDArray[np.int32],
) -> int:  # fmt: skip
    """Do what can be done, until nothing moves or Python is needed.

    Local; holds the engine's lock and not the GIL.  The arrays are those of
    `closeranks.collectives.numbers.Layout`; entered again, it goes on where it
    was.

    Returns
    -------
    int
        `IDLE` ... `FAILED`.
    """
    entered = -1.0
    if state[FINISH] >= 0:
        step = state[FINISH]
        state[FINISH] = -1
        if finish(state, rows, following, steps, step):
            return NEWS
    while True:
        if state[PHASE] == START:
            answer = start(state, rows, following, steps, flights, requests)
            if answer != IDLE:
                return answer
            state[PHASE], entered = TEST, -1.0
        elif state[PHASE] == TEST:
            if not test(state, flights, requests, counts):
                return FAILED
            if state[N_ARRIVED] > 0 and state[SINCE] > 0:  # the next one may take as long
                now_us = np.int64(seconds(state[CLOCK]) * 1e6)
                state[SINCE] = now_us - (now_us - state[SINCE]) // 4
            if state[N_ARRIVED] > 0 or state[POLLS] > 0:
                state[PHASE] = TAKE
                if state[POLLS] > 0:
                    return LOOK
                continue
            if state[PATIENCE_NS] > 0 and entered < 0:
                entered = seconds(state[CLOCK])
                if state[SINCE] == 0:
                    state[SINCE] = np.int64(entered * 1e6)
            if not stay(state, entered):
                return IDLE
        else:
            answer = take(state, rows, following, steps, flights)
            if answer != IDLE:
                return answer
            state[PHASE] = START
            if state[N_ARRIVED] == 0:
                state[PHASE] = TEST
                return IDLE
