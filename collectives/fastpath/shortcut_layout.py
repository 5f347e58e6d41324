"""Where the machine code of shortcuts finds what it knows.

What stands here is compiled into
`closeranks.collectives.fastpath.shortcut_code`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    pass


#: Places in a record (int64). Functions of the interpreter.
VECTORCALL, GETATTR, AS_SSIZE, INCREF, DECREF, CLEAR, MATCHES, SAVE, RESTORE = range(9)
VIEW, UNVIEW = range(9, 11)
FETCH, NORMALIZE, TRACE, PUT_BACK = range(11, 15)
#: Objects: names, the errors that send a call the long way, None, types, MPI's constants,
#: the library's errors.
NBYTES, ITEMSIZE, ROOT_NAME, OP_NAME, UNREADABLE_WORD, NONE, LIST, TUPLE = range(15, 23)
ARRAY, IN_PLACE, SUM, EXCEPTION = range(23, 27)
#: Address of the plain datatypes, each with its bytes and NumPy's type of them or 0; 0 ends them.
PLAIN: Final = 27
PLAIN_ROW: Final = 3
#: The communicator's size and rank.
MEMBERS, PLACE = range(28, 30)
#: The rule: which argument tells the size, which has as many blocks as members,
#: which has equal bytes, which are vectors, which is a vector's own block, which
#: must be given, which is the root; -1 for none. BY_TOTAL: a vector tells the size.
#: BLOCKED: the size is that of as many blocks as members.
#: BUFFERS: how many arguments are messages, the first ones.
#: MOVES: both are to be of one type, which the library does not look at.
SIZED, WHOLE, EQUAL, VECTOR, SECOND, PART, GIVEN, ROOT, BY_TOTAL = range(30, 39)
BLOCKED, BUFFERS, MOVES = range(39, 42)
#: Address of the known sizes, `SLOTS` rows of them.
KNOWN: Final = 42
#: The argument that goes the long way where it is `IN_PLACE`, because somebody has to keep
#: what its buffer holds; -1 while nobody has to.
KEPT: Final = 43
#: A Python function that raises what the user is told of an error of the library; room for
#: such an error: type, value and traceback.
EXPLAIN: Final = 44
ERROR: Final = 45
#: Room for a look at an object's buffer, `Py_buffer` of 80 bytes.
SEEN: Final = 48
#: What of it is read: where the memory is, how long, and its format.
SEEN_BUF, SEEN_LEN, SEEN_FORMAT = SEEN, SEEN + 2, SEEN + 5
#: Address of NumPy's types by the letter of a buffer's format, 128 of them, 0 for none.
LETTERS: Final = 58
#: Addresses of the numbers of calls that have begun, and of those of the library under way.
BEGUN_AT, INSIDE_AT = range(59, 61)
RECORD: Final = 61
#: How it is looked at: PyBUF_FULL_RO, as by memoryview.
SHOWN: Final = 0x11C
SLOTS: Final = 256

#: Columns of a row: the size, -1 where there is none; its calls that were the library's;
#: address of the first entry whose calls are a kernel's, 0 where the library does it.
ROW_SIZE, ROW_CALLS, ROW_ENTRY, ROW = range(4)

#: Places in an entry (int64): the next one of this size; what its calls look like.
E_NEXT, E_FORM = range(2)
#: Of the first array and of the second one: type and items.
E_GIVEN_TYPE, E_GIVEN_ITEMS, E_TAKEN_TYPE, E_TAKEN_ITEMS = range(2, 6)
#: The op or 0, the root, whether a call may be made in place.
E_OP, E_ROOT, E_IN_PLACE = range(6, 9)
#: The kernel and its arguments but two.
E_KERNEL, E_FRAME, E_STATE, E_BYTES = range(9, 13)
#: Addresses: of what waits for the memory, and of the world's number of calls.
E_QUEUE, E_SEQUENCE = range(13, 15)
#: The calls; the arrays of this one; Python functions that wait for its end, and that
#: leave it to others if an exception has come between.
E_CALLS, E_GIVEN, E_TAKEN, E_FINISH, E_LEAVE = range(15, 20)
#: Bytes of the two arrays, which may not overlap.
E_GIVEN_BYTES, E_TAKEN_BYTES = range(20, 22)
ENTRY: Final = 22
#: Forms of calls: two arrays; one that the root sends; none; two, the second at the root.
PAIR, ONE, NO_ARRAY, AT_ROOT = range(4)
#: Kernels on fewer bytes keep the interpreter's lock: to give it back takes as long.
BRIEF: Final = 16384

#: Where the first item of a tuple lies, the type of an object, and the memory of an array;
#: there lies the length of lists and tuples, and one word further the items of a list.
ITEMS: Final = tuple.__basicsize__
TYPE: Final = object.__basicsize__ - 8
DATA: Final = object.__basicsize__
#: Where an array's dimensions, their lengths, its type and its flags lie, in NumPy's
#: stable ABI; flags of arrays side by side, and of those that may be written.
NDIM_AT, SHAPE_AT, DTYPE_AT, FLAGS_AT = DATA + 8, DATA + 16, DATA + 40, DATA + 48
READABLE, WRITABLE = 0x101, 0x501


def slot_of(nbytes: int) -> int:
    """Give the only slot where a size may stand."""
    return (nbytes ^ nbytes >> 8 ^ nbytes >> 16) % SLOTS
