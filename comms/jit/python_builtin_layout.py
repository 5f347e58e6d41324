"""Where the machine code of builtin functions finds what it knows.

What stands here is compiled into `python_builtin_code`.
"""

from __future__ import annotations

from typing import Final

#: Where an array keeps its pointer: the first field after the head of an object, in
#: NumPy's stable ABI.
DATA: Final = object.__basicsize__


#: Bytes into a record (int64). The C function, its number of arguments, which bits of
#: what it returns count, and what makes an object of them.
FUNCTION, COUNT, MASK, FROM_LONG = range(0, 32, 8)


#: Functions of the interpreter.
AS_SSIZE, OCCURRED, WRONG, SAVE, RESTORE = range(32, 72, 8)


#: In the record of `closeranks.comms.jit.python_builtin.copier_at` the plan of the copy follows.
PLAN: Final = 72
