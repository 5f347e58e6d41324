"""The columns of a table of steps, whose rows are int64 numbers.

Columns of a row:

========== ====================================================================
KIND       `Kind` of the step
PEER       rank of a SEND or RECEIVE, index of an EVENT, else -1
SLOT       slot of a message
NEED       how many of the steps waited for must be done
AFTER      first place in ``after``;  N_AFTER: how many
NEXT       first place in ``successors``;  N_NEXT: how many
BLOCK      five columns: buffer, start, count, repeat, stride of ``block``
SOURCE     five columns: the same of a single ``source``
ACTION     place in ``actions``, or -1
FLAGS      `OPTIONAL`, `SYMBOLIC`, `STRIDED`, or-ed
OPERANDS   first row in ``operands``: N_READS rows that an APPLY reads, then
           N_WRITES rows that it writes
SETS       first place in ``sets``;  N_SETS: how many registers an APPLY sets
========== ====================================================================

An absent block has buffer -1.  Symbols ``~k`` stay as they are: negative.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """Kinds of steps."""

    SEND = 1
    RECEIVE = 2
    REDUCE = 3
    COPY = 4
    APPLY = 5
    EVENT = 6
    NATIVE = 7
    SHARED = 8


KIND: Final = 0
PEER: Final = 1
SLOT: Final = 2
NEED: Final = 3
AFTER: Final = 4
N_AFTER: Final = 5
NEXT: Final = 6
N_NEXT: Final = 7
BLOCK: Final = 8
SOURCE: Final = 13
ACTION: Final = 18
FLAGS: Final = 19
OPERANDS: Final = 20
N_READS: Final = 21
N_WRITES: Final = 22
SETS: Final = 23
N_SETS: Final = 24
WIDTH: Final = 25

#: Flags: the result does not wait for the step.
OPTIONAL: Final = 1
#: Some start, count or size of a buffer is a register.
SYMBOLIC: Final = 2
#: Some block has more than one run.
STRIDED: Final = 4
