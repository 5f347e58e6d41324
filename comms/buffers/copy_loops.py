"""Compiled loops that copy runs between two strided places.

This module imports Numba, so it is imported only to compile.  A loop is
compiled for each length of run when it is first needed.

Memory bounds these loops: runs that are a few lines or a page apart defeat the
processor's own prefetching, hence `ahead`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from closeranks.comms.jit.atomics import drain, stream_lines
from closeranks.comms.jit.c_calls import word

_PREFETCH = "llvm.prefetch"
_L2 = 2  # locality of the prefetch: L1 is too small for what is fetched ahead
_WORD = 3  # binary logarithm of the longest word that is gathered in fours
_BYTE = ir.IntType(8)
#: Where an ndarray keeps its pointer: the first field after the head of an object, in
#: NumPy's stable ABI.  The attributes that tell it cost as much as a small pack.
_DATA = object.__basicsize__


def _moving(typing: Any, unit: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """Copy ``2**len(unit)`` bytes from ``source + at`` to ``target + to``."""
    del typing
    size = 1 << len(unit)
    word = ir.IntType(8 * size) if size <= 8 else ir.VectorType(_BYTE, size)

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        _, target, to, source, at = values
        loaded = builder.load(_place(builder, source, at, word), align=1)
        builder.store(loaded, _place(builder, target, to, word), align=1)
        return context.get_dummy_value()

    return types.void(unit, target, to, source, at), code


def _gathering(typing: Any, unit: Any, target: Any, source: Any, step: Any) -> Any:
    """Copy four words that lie ``step`` apart to one place, by one store.

    A processor has fewer store buffers than load buffers.  With one store a word,
    stores would bound the number of loads under way.
    """
    del typing
    word = ir.IntType(8 << len(unit))

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        _, target, source, step = values
        four, at = ir.VectorType(word, 4), ir.IntType(64)(0)
        gathered = ir.Constant(four, ir.Undefined)
        for i in range(4):
            loaded = builder.load(_place(builder, source, at, word), align=1)
            gathered = builder.insert_element(gathered, loaded, ir.IntType(32)(i))
            at = builder.add(at, step)
        builder.store(gathered, _place(builder, target, ir.IntType(64)(0), four), align=1)
        return context.get_dummy_value()

    return types.void(unit, target, source, step), code


def _copying(typing: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """Copy any number of bytes by memcpy."""
    del typing

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        to, at = (builder.inttoptr(one, _BYTE.as_pointer()) for one in values[:2])
        cgutils.raw_memcpy(builder, to, at, values[2], 1)
        return context.get_dummy_value()

    return types.void(target, source, nbytes), code


def _fetching(typing: Any, address: Any) -> Any:
    """Prefetch the cache line of an address, which need not exist."""
    del typing

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        pointer, number = _BYTE.as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic(_PREFETCH, [pointer], kind)
        place = builder.inttoptr(values[0], pointer)
        builder.call(function, [place, number(0), number(_L2), number(1)])
        return context.get_dummy_value()

    return types.void(address), code


def _place(builder: Any, base: Any, offset: Any, word: Any) -> Any:
    """Point at a word; by GEP, so that LLVM sees the stride and vectorises."""
    start = builder.inttoptr(base, _BYTE.as_pointer())
    return builder.bitcast(builder.gep(start, [offset]), word.as_pointer())


#: Numba's decorators change a function's arguments, which annotations cannot tell.
_intrinsic: Any = intrinsic
_njit: Any = njit(error_model="numpy")
_move, _gather, _copy = _intrinsic(_moving), _intrinsic(_gathering), _intrinsic(_copying)
_fetch = _intrinsic(_fetching)


@_njit
def _ahead(unit, tail, ahead, n, target, t, source, s):  # type: ignore[no-untyped-def]
    """Copy runs that are far apart on one side; prefetch their lines."""
    front, step = (source, s) if abs(s) > abs(t) else (target, t)
    front += ahead * step
    for i in range(n):
        _fetch(front + i * step)
        _move(unit, target, i * t, source, i * s)
        if tail:
            _move(unit, target + tail, i * t, source + tail, i * s)


@_njit
def _fours(unit, ahead, n, target, source, s):  # type: ignore[no-untyped-def]
    """Gather words in fours, the rest one by one; n is at least 4."""
    w = 1 << len(unit)
    if ahead:
        for i in range(0, n - 3, 4):
            front = source + (i + ahead) * s
            _fetch(front)
            _fetch(front + s)
            _fetch(front + 2 * s)
            _fetch(front + 3 * s)
            _gather(unit, target + i * w, source + i * s, s)
    else:
        for i in range(0, n - 3, 4):
            _gather(unit, target + i * w, source + i * s, s)
    for i in range(n - n % 4, n):
        _move(unit, target, i * w, source, i * s)


@_njit
def _near(unit, tail, n, target, t, source, s):  # type: ignore[no-untyped-def]
    """Copy runs that are near each other.

    Steps of exactly one word and two stand apart, for LLVM to shuffle.
    """
    w = 1 << len(unit)
    if tail:
        for i in range(n):
            _move(unit, target, i * t, source, i * s)
            _move(unit, target + tail, i * t, source + tail, i * s)
    elif t == w and s == 2 * w:
        for i in range(n):
            _move(unit, target, i * w, source, i * 2 * w)
    elif t == 2 * w and s == w:
        for i in range(n):
            _move(unit, target, i * 2 * w, source, i * w)
    else:
        for i in range(n):
            _move(unit, target, i * t, source, i * s)


@_njit
def _short(unit, plan, target_array, t, source_array, s):  # type: ignore[no-untyped-def]
    """Copy runs of ``w = 2**len(unit)`` to ``2 * w`` bytes.

    A run that is no power of two is copied as two words that overlap.
    """
    w = 1 << len(unit)
    tail, ahead = word(plan) - w, word(plan + 8)
    n2, t2, s2 = word(plan + 16), word(plan + 24), word(plan + 32)
    n1, t1, s1 = word(plan + 40), word(plan + 48), word(plan + 56)
    n0, t0, s0 = word(plan + 64), word(plan + 72), word(plan + 80)
    t += word(target_array + _DATA)
    s += word(source_array + _DATA)
    for k in range(n2):
        for j in range(n1):
            target, source = t + k * t2 + j * t1, s + k * s2 + j * s1
            if len(unit) <= _WORD and t0 == w and s0 != 2 * w and n0 > 3:
                _fours(unit, ahead, n0, target, source, s0)
            elif ahead:
                _ahead(unit, tail, ahead, n0, target, t0, source, s0)
            else:
                _near(unit, tail, n0, target, t0, source, s0)


@_njit
def _long(unit, plan, target_array, t, source_array, s):  # type: ignore[no-untyped-def]
    """Copy runs of any length; prefetch the first lines of later runs."""
    run, ahead = word(plan + 8 * len(unit)), word(plan + 8)
    n2, t2, s2 = word(plan + 16), word(plan + 24), word(plan + 32)
    n1, t1, s1 = word(plan + 40), word(plan + 48), word(plan + 56)
    n0, t0, s0 = word(plan + 64), word(plan + 72), word(plan + 80)
    t += word(target_array + _DATA)
    s += word(source_array + _DATA)
    for k in range(n2):
        for j in range(n1):
            target, source = t + k * t2 + j * t1, s + k * s2 + j * s1
            front, step = (source, s0) if abs(s0) > abs(t0) else (target, t0)
            front += ahead * step
            for i in range(n0):
                if ahead:
                    _fetch(front + i * step)
                _copy(target + i * t0, source + i * s0, run)


@_njit
def _past(unit, plan, target_array, t, source_array, s):  # type: ignore[no-untyped-def]
    """Copy runs of any length past the caches."""
    run = word(plan + 8 * len(unit))
    n2, t2, s2 = word(plan + 16), word(plan + 24), word(plan + 32)
    n1, t1, s1 = word(plan + 40), word(plan + 48), word(plan + 56)
    n0, t0, s0 = word(plan + 64), word(plan + 72), word(plan + 80)
    t += word(target_array + _DATA)
    s += word(source_array + _DATA)
    for k in range(n2):
        for j in range(n1):
            for i in range(n0):
                target = t + k * t2 + j * t1 + i * t0
                source = s + k * s2 + j * s1 + i * s0
                head = min(-target % 64, run)
                _copy(target, source, head)
                whole = (run - head) // 64 * 64
                stream_lines(target + head, source + head, whole // 64)
                done = head + whole
                _copy(target + done, source + done, run - done)
    drain()


def exported(name: str) -> tuple[Callable[..., None], Any]:
    """Give the loops over runs of a length, and their signature.

    Parameters
    ----------
    name : str
        As `closeranks.comms.buffers.packing` tells: "long", "past", or "short" and
        the binary logarithm of the length.

    Returns
    -------
    function : callable
        Takes the address of the plan, then ``id`` of the target array and bytes
        from its first element, then the same of the source.  The plan is 11
        int64: the run, how many runs ahead to fetch, and count, target stride
        and source stride of three loops, outermost first.
    signature : numba signature
        Five int64.
    """
    loop = {"long": _long, "past": _past}.get(name, _short)
    unit = (None,) * int(name.removeprefix("short") if loop is _short else 0)

    def run(plan, target_array, t, source_array, s):  # type: ignore[no-untyped-def]
        loop(unit, plan, target_array, t, source_array, s)

    return run, types.void(*(types.int64,) * 5)
