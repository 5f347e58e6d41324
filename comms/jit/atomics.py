"""Atomic loads, stores, exchanges and copies in shared memory, which Numba lacks.

All functions take plain addresses (int64), so their callers compile once for
all types.  This module imports Numba, so it is imported only when a kernel is
compiled.
"""

from __future__ import annotations

import platform
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Numba's decorator changes the arguments of a function, which annotations cannot tell.
_intrinsic: Any = intrinsic
_carray: Any = numba.carray  # type: ignore[attr-defined]
_VOID, _I8, _I32, _I64 = ir.VoidType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
#: Distance, in lines, at which lines are fetched before they are written.
_EARLY = 32
#: The instruction of a polite spin loop, by architecture: (LLVM name, argument).
_PAUSES = {
    "x86_64": ("llvm.x86.sse2.pause", None),
    "AMD64": ("llvm.x86.sse2.pause", None),
    "aarch64": ("llvm.aarch64.hint", 1),
    "arm64": ("llvm.aarch64.hint", 1),
}


@_intrinsic
def _place(context: Any, address: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Point at an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], _I64.as_pointer())

    return types.CPointer(types.int64)(types.int64), code


@numba.njit
def array_at(address: int, length: int) -> Any:
    """View int64 numbers at an address as an array."""
    return _carray(_place(address), (length,))


@numba.njit
def table_at(address: int, rows: int, columns: int) -> Any:
    """View int64 numbers at an address as a table."""
    return _carray(_place(address), (rows, columns))


@_intrinsic
def _int_place(context: Any, address: Any) -> Any:  # noqa: ARG001
    """Point at an int32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], _I32.as_pointer())

    return types.CPointer(types.int32)(types.int64), code


@numba.njit
def ints_at(address: int, length: int) -> Any:
    """View int32 numbers at an address as an array."""
    return _carray(_int_place(address), (length,))


@_intrinsic
def load_acquire(context: Any, address: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Read an int64; nothing after it moves before it."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), code


@_intrinsic
def store_release(context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an int64; nothing before it moves after it."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)

    return types.void(types.int64, types.int64), code


@_intrinsic
def swap_if(context: Any, address: Any, expected: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an int64 if the expected one stands there; give what stood there."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        pair = builder.cmpxchg(pointer, arguments[1], arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 0)

    return types.int64(types.int64, types.int64, types.int64), code


@_intrinsic
def fetch_add(context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Add to an int64; give what stood there."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@_intrinsic
def fetch_or(context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Set bits of an int64; give what stood there."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("or", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@_intrinsic
def exchange(context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an int64, before all that follows; give what stood there."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("xchg", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@_intrinsic
def pause(context: Any) -> Any:  # noqa: ARG001
    """Tell the core that this is a spin loop."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        name, argument = _PAUSES.get(platform.machine(), (None, None))
        if name is None:
            return
        operands = [] if argument is None else [_I32(argument)]
        kind = ir.FunctionType(_VOID, [operand.type for operand in operands])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), operands)

    return types.void(), code


@_intrinsic
def ticks(context: Any) -> Any:  # noqa: ARG001
    """Read a clock that counts evenly, in some unit; 0 if programs may not."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if platform.machine() not in ("x86_64", "AMD64"):
            return _I64(0)
        kind = ir.FunctionType(_I64, [])
        clock = cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter")
        return builder.call(clock, [])

    return types.int64(), code


@_intrinsic
def copy_bytes(context: Any, target: Any, source: Any, nbytes: Any) -> Any:  # noqa: ARG001
    """Copy bytes between places that do not overlap."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        target, source, nbytes = arguments
        places = [builder.inttoptr(place, _I8.as_pointer()) for place in (target, source)]
        cgutils.raw_memcpy(builder, *places, nbytes, 1)

    return types.void(types.int64, types.int64, types.int64), code


@_intrinsic
def copy_lines(context: Any, target: Any, source: Any, pairs: Any) -> Any:  # noqa: ARG001
    """Copy pairs of lines of 64 bytes; ``target`` is aligned to a line.

    From 2 KiB on the C library copies by ``rep movsb``, which takes up to
    fifteen times as long on some processors (Zen 3) where the target lies a
    little further on in its page than the source.  Lines that another core has
    read are fetched early, because that core must give them up.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        line = ir.VectorType(_I64, 8)
        target, source, pairs = arguments
        into = builder.inttoptr(target, line.as_pointer())
        out_of = builder.inttoptr(source, line.as_pointer())
        with cgutils.for_range(builder, pairs) as loop:
            first = builder.shl(loop.index, _I64(1))
            places = first, builder.add(first, _I64(1))
            for at in places:
                _ask_for(builder, builder.gep(into, [builder.add(at, _I64(_EARLY))]))
            values = [builder.load(builder.gep(out_of, [at]), align=1) for at in places]
            for at, value in zip(places, values, strict=True):
                builder.store(value, builder.gep(into, [at]), align=64)

    return types.void(types.int64, types.int64, types.int64), code


def _ask_for(builder: Any, line: Any) -> None:
    """Fetch a line that will be written."""
    place = builder.bitcast(line, _I8.as_pointer())
    kind = ir.FunctionType(_VOID, [place.type, _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    to_write, everywhere, data = _I32(1), _I32(3), _I32(1)
    builder.call(prefetch, [place, to_write, everywhere, data])


@_intrinsic
def stream_lines(context: Any, target: Any, source: Any, lines: Any) -> Any:  # noqa: ARG001
    """Copy lines of 64 bytes past the caches; ``target`` is aligned to a line.

    The lines are then in memory, or in a cache that both cores share.  Dirty
    lines in this core's own cache would reach another core slowly.  Other ranks
    see the lines for certain only after `drain`.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        target, source, lines = arguments
        _stream(builder, (target,), source, lines)

    return types.void(types.int64, types.int64, types.int64), code


@_intrinsic
def stream_lines_twice(context: Any, target: Any, other: Any, source: Any, lines: Any) -> Any:  # noqa: ARG001
    """Copy lines to two places, as `stream_lines` does to one."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        target, other, source, lines = arguments
        _stream(builder, (target, other), source, lines)

    return types.void(types.int64, types.int64, types.int64, types.int64), code


def _stream(builder: Any, targets: tuple[Any, ...], source: Any, lines: Any) -> None:
    """Write the loop of stores that go past the caches."""
    line = ir.VectorType(_I64, 8)
    out_of = builder.inttoptr(source, line.as_pointer())
    into = [builder.inttoptr(target, line.as_pointer()) for target in targets]
    hint = builder.module.add_metadata([_I32(1)])
    with cgutils.for_range(builder, lines) as loop:
        value = builder.load(builder.gep(out_of, [loop.index]), align=1)
        for place in into:
            store = builder.store(value, builder.gep(place, [loop.index]), align=64)
            store.set_metadata("nontemporal", hint)


@_intrinsic
def drain(context: Any) -> Any:  # noqa: ARG001
    """Order streamed stores before all later stores."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        if platform.machine() not in ("x86_64", "AMD64"):
            builder.fence("seq_cst")
            return
        kind = ir.FunctionType(_VOID, [])
        fence = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence")
        builder.call(fence, [])

    return types.void(), code


@_intrinsic
def call_yield(context: Any, function: Any) -> Any:  # noqa: ARG001
    """Call ``int function(void)``, such as ``sched_yield``, by its address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_I32, [])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])

    return types.void(types.int64), code


@_intrinsic
def call_three(context: Any, function: Any, a: Any, b: Any, out: Any, n: Any) -> Any:  # noqa: ARG001
    """Call ``void function(a, b, out, n)`` by its address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_VOID, [_I64] * 4)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.void(*[types.int64] * 5), code


@_intrinsic
def call_pair(context: Any, function: Any, source: Any, target: Any, n: Any) -> Any:  # noqa: ARG001
    """Call ``void function(source, target, n)`` by its address."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_VOID, [_I64] * 3)
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.void(*[types.int64] * 4), code
