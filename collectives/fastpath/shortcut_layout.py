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
#: MEAN: the size class is that of the mean block, not of all blocks.
SIZED, WHOLE, EQUAL, VECTOR, SECOND, PART, GIVEN, ROOT, BY_TOTAL = range(30, 39)
BLOCKED, BUFFERS, MOVES, MEAN = range(39, 43)
#: Address of the known size classes, a row for each.
KNOWN: Final = 43
#: The argument that goes the long way where it is `IN_PLACE`, because somebody has to keep
#: what its buffer holds; -1 while nobody has to.
KEPT: Final = 44
#: A Python function that raises what the user is told of an error of the library; room for
#: such an error: type, value and traceback.
EXPLAIN: Final = 45
ERROR: Final = 46
#: Room for a look at an object's buffer, `Py_buffer` of 80 bytes.
SEEN: Final = 49
#: What of it is read: where the memory is, how long, and its format.
SEEN_BUF, SEEN_LEN, SEEN_FORMAT = SEEN, SEEN + 2, SEEN + 5
#: Address of NumPy's types by the letter of a buffer's format, 128 of them, 0 for none.
LETTERS: Final = 59
#: Addresses of the numbers of calls that have begun, and of those of the library under way.
BEGUN_AT, INSIDE_AT = range(60, 62)
#: Of a call that returns a request, else 0: the type that is made of the library's request,
#: and what all requests of these calls have in common.
REQUEST, ORIGIN = range(62, 64)
#: Lists: weak references to requests that were begun, and dropped requests whose buffers are
#: kept.  A call goes the long way, where both are cleared, if there are `MANY_BEGUN` of the
#: first or any of the second.
BEGUN, DROPPED = range(64, 66)
#: Functions of the interpreter and names of attributes, for such requests.
CALL_ONE, SET_ATTRIBUTE, NEW_REFERENCE, APPEND, NEW_TUPLE = range(66, 71)
KEEPS_NAME, ORIGIN_NAME = range(71, 73)
#: Of a call that may go past mpi4py: the function of the MPI library, else 0; what makes an
#: object of a type; the type of ops; the communicator's handle, and where objects have theirs.
DIRECT, CALL_NONE, OP_TYPE, COMM, REQUEST_HANDLE, OP_HANDLE = range(73, 79)
#: Address of NumPy's types, each with the handle of its MPI datatype; 0 ends them.
TYPES: Final = 79
TYPE_ROW: Final = 2
RECORD: Final = 80
#: The most elements of such a call, and the answers if it is left to mpi4py and if the library
#: has refused it.
MOST_COUNT, NOT_BEGUN, REFUSED = 2**31 - 1, -1, -2
MANY_BEGUN: Final = 512
#: In place of `KEPT`: every call goes the long way.
ALL_KEPT: Final = -2
#: How it is looked at: PyBUF_FULL_RO, as by memoryview.
SHOWN: Final = 0x11C
#: Columns of a row, one for each size class: 1 where the class is known, else 0; its calls
#: that were the library's; address of the first entry whose calls are a kernel's, 0 where
#: the library does it; address of the number of calls after which the class is to be looked
#: at again.
ROW_KNOWN, ROW_CALLS, ROW_ENTRY, ROW_LEFT, ROW = range(5)

#: Places in an entry (int64): the next one of this class; what its calls look like.
E_NEXT, E_FORM = range(2)
#: Of the first array and of the second one: type, bytes of an item, and blocks.
E_GIVEN_TYPE, E_GIVEN_ITEM, E_GIVEN_BLOCKS = range(2, 5)
E_TAKEN_TYPE, E_TAKEN_ITEM, E_TAKEN_BLOCKS = range(5, 8)
#: The op or 0, the root, whether a call may be made in place.
E_OP, E_ROOT, E_IN_PLACE = range(8, 11)
#: The kernel up to so many bytes, and the one beyond; their first two arguments.
E_SHORT, E_SHORT_KERNEL, E_LONG_KERNEL, E_FRAME, E_STATE = range(11, 16)
#: Addresses: of what waits for the memory, and of the world's number of calls.
E_QUEUE, E_SEQUENCE = range(16, 18)
#: Python functions that wait for the end of a call, and that leave it to others if an
#: exception has come between.
E_FINISH, E_LEAVE = range(18, 20)
#: The calls; of this one the arrays, their bytes, and the bytes of a block.
E_CALLS, E_GIVEN, E_TAKEN, E_GIVEN_BYTES, E_TAKEN_BYTES, E_BYTES = range(20, 26)
ENTRY: Final = 26
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
#: Where a type has the bytes of an item, in the same ABI.
ITEMSIZE_AT: Final = DATA + 24
READABLE, WRITABLE = 0x101, 0x501
#: Flags of which arrays without gaps have one at least: by rows, or by columns.
WHOLE_FLAGS: Final = 0x3


def class_of(nbytes: int) -> int:
    """Give the size class, as `closeranks.collectives.arguments.call_key.size_class`."""
    bits = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if nbytes >> shift:
            nbytes >>= shift
            bits += shift
    return bits + (nbytes != 0)
