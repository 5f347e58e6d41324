"""Where the compiled loop finds its numbers, and the answers that it gives.

The constants are compiled into `closeranks.collectives.engine.compiled_loop`.
"""

from __future__ import annotations

#: Places in ``state`` that change during a run.  FINISH is a step that Python has run and that
#: is done, or -1; STEP is one that is handed back; POLLS counts the polls of Python, which are
#: no requests; CODE is an error code of MPI.
PHASE, FINISH, STEP, COMPLETED, REQUIRED, TOLD, N_READY, N_REQUESTS = range(8)
N_ARRIVED, CURSOR, POLLS, CODE, TAG = range(8, 13)
#: See `closeranks.collectives.engine.progress_answer.Patience`.
PATIENCE_NS, SPIN_NS, PAUSE_US, WANTED = range(13, 17)
#: Addresses of functions, and of arrays that MPI writes.
ISEND, IRECV, TESTSOME, MEMMOVE, YIELD, SLEEP, CLOCK, COMBINE = range(17, 25)
REQUESTS, COUNTS, STATUSES = range(25, 28)
#: When the wait for messages began, in microseconds of the clock; 0 before any wait.
SINCE = 28
#: Addresses of MPI_Request_get_status and MPI_Test where ranks may die, else 0: there no
#: message may be given up before it is through, see
#: `closeranks.collectives.engine.error_translation`.
INQUIRE, RELEASE, STATES = range(29, 32)

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

#: Rows of ``flights``: the step of each request, and the steps that have arrived.
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

#: The frame, by which Python tells the loop of a plan: addresses of the arrays of
#: `closeranks.collectives.engine.execution_arrays.ExecutionLayout`, the last one's
#: but that of the requests int64; then how many steps, successors, columns of
#: ``flights`` and requests.
AT_STATE, AT_ROWS, AT_FOLLOWING, AT_STEPS, AT_FLIGHTS, AT_REQUESTS, AT_COUNTS = range(7)
STEPS, SUCCESSORS, FLIGHTS, N_HANDLES = range(7, 11)
FRAME = 11
