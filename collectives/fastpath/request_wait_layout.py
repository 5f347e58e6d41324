"""Where the machine code that waits for a request finds what it knows.

What stands here is compiled into
`closeranks.collectives.fastpath.request_wait_code`.
"""

from __future__ import annotations

from typing import Final

#: Places in the record (int64): functions of the interpreter, of the MPI library and of C.
#: YIELD is 0 where every rank has a core.
SAVE, RESTORE, TO_BOOL, INQUIRE, CLOCK, YIELD = range(6)
#: Bytes from a request object to its handle, and the bits of that which count.
HANDLE, MASK = range(6, 8)
#: Looks between two yields and two looks at the clock; the longest wait in nanoseconds.
LOOKS, MOST_NS = range(8, 10)
#: Functions of the interpreter, the library's method ``Wait``, the name of what a request
#: keeps, and None, which stands there when it is over.
VECTORCALL, SET_ATTRIBUTE, DECREF, WAIT, KEEPS_NAME, NONE = range(10, 16)
RECORD: Final = 16
#: What stands for an error of the library.
FAILED: Final = 2
#: Room for an ``MPI_Status``.
STATUS_BYTES: Final = 128
#: Where the memory of an array begins, as in
#: `closeranks.collectives.fastpath.shortcut_layout`.
DATA: Final = object.__basicsize__
