"""Where the compiled refill finds its numbers, and the answers that it gives.

The constants are compiled into `closeranks.collectives.refill.refill_loop`.
"""

from __future__ import annotations

#: Cells of the frame that change with each call: the count; address and bytes of the caller's
#: memory and of the scratch; how many requests there is room for.
COUNT, INPUT, INPUT_BYTES, OUTPUT, OUTPUT_BYTES, SCRATCH, SCRATCH_BYTES, ROOM = range(8)
#: Cells that the refill writes: scratch and requests that the plan needs.
NEEDED_BYTES, NEEDED_ROOM = range(8, 10)
#: The element: its bytes, its alignment, and whether compiled code reduces it.
ITEMSIZE, ALIGNMENT, COMBINES = range(10, 13)
#: Addresses and lengths of the arrays of `closeranks.collectives.plans.count_record.SizedTable`,
#: and of room for the values of its numbers.
AT_ENTRIES, N_ENTRIES, AT_CONDITIONS, N_CONDITIONS, AT_CELLS, N_CELLS = range(13, 19)
AT_SIZES, N_SIZES, AT_VALUES = range(19, 22)
#: Addresses of the rows and buffers of the table, how many there are, where each buffer lies;
#: the rows of the compiled loop; of each step the longest message and the level, -1 for a step
#: that sends nothing; bytes sent over each level.
AT_TABLE, N_STEPS, AT_BUFFERS, N_BUFFERS, AT_PLACES, AT_ROWS = range(22, 28)
AT_LONGEST, AT_LEVELS, AT_SENT, N_LEVELS = range(28, 32)
FRAME = 32

#: Scratch buffers begin at multiples of that many bytes.
LINE = 64

#: Answers: done; the count does not meet the conditions; more scratch or more requests are
#: needed; some step must be run by Python, or the caller's memory is too small.
DONE, OTHER, GROW, REFUSED = range(4)
