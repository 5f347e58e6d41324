"""The machine code that waits a moment for a request of the MPI library.

`closeranks.collectives.fastpath.request_wait` says what for.  Importing this
module imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from closeranks.collectives.engine.compiled_loop import seconds
from closeranks.collectives.fastpath.request_wait_layout import (
    CLOCK,
    DATA,
    DECREF,
    FAILED,
    HANDLE,
    INQUIRE,
    KEEPS_NAME,
    LOOKS,
    MASK,
    MOST_NS,
    NONE,
    RESTORE,
    SAVE,
    SET_ATTRIBUTE,
    STATUS_BYTES,
    TO_BOOL,
    VECTORCALL,
    WAIT,
    YIELD,
)
from closeranks.comms.jit.c_calls import call0, call1, call3, call4, word

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_intrinsic: Any = intrinsic


@_intrinsic
def inquire(context: Any, function: Any, request: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Call ``int function(request, int *flag, MPI_Status *)``; the flag or `FAILED`."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        flag = cgutils.alloca_once_value(builder, _I32(0))
        status = cgutils.alloca_once(builder, _I64, STATUS_BYTES // 8)
        builder.store(_I32(0), flag)
        given = [_I64, _I32.as_pointer(), _I64.as_pointer()]
        kind = ir.FunctionType(_I32, given).as_pointer()
        called = builder.inttoptr(arguments[0], kind)
        failed = builder.call(called, [arguments[1], flag, status])
        is_over = builder.icmp_signed("!=", builder.load(flag), _I32(0))
        is_well = builder.icmp_signed("==", failed, _I32(0))
        return builder.select(is_well, builder.zext(is_over, _I64), _I64(FAILED))

    return types.int64(types.int64, types.int64), code


def wait_a_moment(itself: int, args: int, nargs: int) -> int:
    """Look at a request until it is over, or some time has passed; ends it if it is.

    A C function of the kind METH_FASTCALL; ``itself`` is the record, an array, and
    the arguments those of the library's ``Wait``.  Gives True if it is over.
    """
    record = word(itself + DATA)
    thread = call0(word(record + 8 * SAVE))
    request = word(word(args) + word(record + 8 * HANDLE)) & word(record + 8 * MASK)
    over, looks, began = inquire(word(record + 8 * INQUIRE), request), 1, -1.0
    while over == 0:
        if looks % word(record + 8 * LOOKS) == 0:
            now = seconds(word(record + 8 * CLOCK))
            if began < 0:
                began = now
            elif (now - began) * 1e9 > word(record + 8 * MOST_NS):
                break
            if word(record + 8 * YIELD) != 0:
                call0(word(record + 8 * YIELD))
        over, looks = inquire(word(record + 8 * INQUIRE), request), looks + 1
    call1(word(record + 8 * RESTORE), thread)
    if over == 1:
        ended = call4(word(record + 8 * VECTORCALL), word(record + 8 * WAIT), args, nargs, 0)
        if ended == 0:
            return 0
        call1(word(record + 8 * DECREF), ended)
        name, none = word(record + 8 * KEEPS_NAME), word(record + 8 * NONE)
        call3(word(record + 8 * SET_ATTRIBUTE), word(args), name, none)
    return call1(word(record + 8 * TO_BOOL), over == 1)


def exported(name: str) -> tuple[Callable[..., int], Any]:
    """Give the function that a builtin's description names, and its signature."""
    return {"wait_a_moment": wait_a_moment}[name], types.int64(*(types.int64,) * 3)
