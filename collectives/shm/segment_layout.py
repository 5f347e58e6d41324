"""Where kernels in node memory find their numbers, and how these are laid out.

The constants are compiled into `closeranks.collectives.shm.allreduce_kernels`
and `closeranks.collectives.shm.movement_kernels`.  `Arrivals` is a layout too:
one line a rank, which says in which collective the rank is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Columns of a frame (int64), which a kernel only reads.
SIZE: Final = 0  # ranks of the node
RANK: Final = 1  # this one
FLAGS: Final = 2  # address of the counters
COPY_BUFFERS: Final = 3  # address of the first rank's copy buffers
COPY_BUFFER: Final = 4  # bytes of a copy buffer at most, a multiple of every element
RESULT_BUFFERS: Final = 5  # address of the first rank's result buffers
RESULT_BUFFER_RING: Final = 6  # bytes in which the result buffers of a rank go round
ABORT: Final = 7  # address of the abort word
YIELD: Final = 8  # address of sched_yield
SPINS: Final = 9  # looks before the first yield
YIELDS: Final = 10  # yields before giving the thread back
ITEM: Final = 11  # bytes of an element
PAIR: Final = 12  # addresses of the combiner's functions, in its order
THREE: Final = 13
WIDE_PAIR: Final = 14  # the same into float32, 0 where there is no need
WIDE_THREE: Final = 15
NARROW: Final = 16  # back from float32
ROOT: Final = 17  # rank of the root, where there is one
SCRATCH: Final = 18  # address of a block of this rank alone
STREAM: Final = 19  # from how many bytes on copies may go past the caches
WIDE: Final = 20  # address of as many float32 as a block has half-precision numbers
CACHE: Final = 21  # bytes of the last cache that are this rank's share
ARRAYS: Final = 22  # address of the table of arrays that all ranks can reach
COPY_BUFFER_RING: Final = 23  # bytes in which the copy buffers of a rank go round
FRAME: Final = 24

#: Places in the state (int64).
START: Final = 0  # last segment of the call before
STAGED: Final = 1  # last segment this rank has laid
DONE: Final = 2  # last segment this rank has done with
PHASE: Final = 3  # where in a segment it stands
#: Whether to go past the caches.
PAST: Final = 4
#: The cost of laying out in ticks for `LINES` lines, through the caches and past them:
#: the least of the last `WINDOW` times, of the `WINDOW` times before, and how many times.
THROUGH: Final = 5
BEYOND: Final = 8
LEAST: Final = 0
BEFORE: Final = 1
TIMES: Final = 2
#: Where the next copy buffer and the next result buffer begin, in their rings.
COPY_BUFFER_AT: Final = 11
RESULT_BUFFER_AT: Final = 12
STATE: Final = 13

#: Copy buffers of a rank, and how far it may lay out before it has done.
COPY_BUFFERS_EACH: Final = 4
AHEAD: Final = 2
#: The counters of a rank.
LAID: Final = 0
REDUCED: Final = 1
#: Bytes between two counters: no two share a line, nor a pair of lines.
LINE: Final = 128
#: Beside the counter ``laid``: names of the arrays that a call reads and writes, one for
#: each copy buffer, see `closeranks.collectives.shm.data_places`.
GIVEN: Final = 1
TAKEN: Final = 5
#: A name is the row of an array in that table, counted from 1, and so many bits of bytes into it.
INSIDE: Final = 44
#: Up to so many bytes are laid out all the same: that takes less than to wait for the readers.
SHORT: Final = 4096
#: Laying out is timed from so many bytes on, and told for so many lines.
TIMED: Final = 4096
LINES: Final = 256
WINDOW: Final = 8
#: Ticks that a line takes at least where it is fetched back from another core: 4 to 8 ns,
#: between the 3 ns of a ring's line in a cache that both share and the 20 to 35 of others.
FETCHED: Final = 16
#: Now and then a segment is laid out the other way, for comparison: one in so many, of the
#: first ones and later.
FIRST: Final = 64
OFTEN: Final = 4
SELDOM: Final = 32
#: From so many bytes on the C library's memcpy is left aside, see `copy_lines`.
LONG: Final = 2048
PAGE: Final = 4096
#: Bytes combined at a time where more than two ranks meet: stays in the L1 cache.
BLOCK: Final = 8192
#: Bytes combined at a time where the result goes past the caches, a multiple of every element.
PIECE: Final = 1024


#: A rank's part; others do not write into the same line of a processor's cache.
LINE_BYTES: Final = 64


class Arrivals:
    """Which collectives the ranks of a node are in, written by each as it goes.

    So a rank that computes, and cannot answer, is known to have left a collective.

    Parameters
    ----------
    memory : ndarray of uint8
        `LINE_BYTES` for each rank of the node, zeros at first; shared.
    mine : int
        The line that this rank writes.
    ranks : tuple of int
        Rank in the node -> rank.
    """

    def __init__(self, memory: NDArray[np.uint8], mine: int, ranks: tuple[int, ...]) -> None:
        self._ranks, self._first = ranks, memory.view(np.int64)[:: LINE_BYTES // 8]
        self._mine = memory[mine * LINE_BYTES :].data.cast("q")

    def write(self, within: int) -> None:
        """Say that all collectives before that one are over here.  Local."""
        self._mine[0] = within

    def read(self) -> dict[int, int]:
        """Give the first collective that each rank is in, or enters next.  Local."""
        return dict(zip(self._ranks, self._first.tolist(), strict=True))
