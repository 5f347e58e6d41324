"""Where the machine code of products finds what it knows.

What stands here is compiled into
`closeranks.checkpoint.erasure.product_entry`.
"""

from __future__ import annotations

from typing import Final

#: Bytes into a record (int64): functions of the interpreter.
GET, RELEASE, CLEAR, SAVE, RESTORE, FROM_LONG = range(0, 48, 8)


#: How many blocks are passed, how many are read, and written; the number from which on
#: blocks must be writable; bytes of a vector; blocks of so many bytes together are left.
TOTAL, COUNT, ROWS, WRITTEN, WIDTH, PAST = range(48, 96, 8)


#: Addresses of tables: where blocks lie; which of them are read, then written; where
#: those lie, both; the lots.
PLACES, ORDER, SOURCES, TARGETS, LOTS = range(96, 136, 8)


#: Bytes of a block; ``Py_buffer``, 80 bytes in the stable ABI.
SIZE, BUFFER = 136, 144


#: Words of a record without its tables.
WORDS: Final = (BUFFER + 80) // 8


#: A lot: the function, its operands, its rows; all zeros at the end.
LOT_OPERANDS, LOT_ROWS, LOT_BYTES = 8, 16, 24


#: PyBUF_STRIDES and PyBUF_FORMAT; and PyBUF_WRITABLE.
READABLE: Final = 0x1C


WRITABLE: Final = 0x1D


#: Of ``unsigned char``, and no more.
BYTES: Final = ord("B")
