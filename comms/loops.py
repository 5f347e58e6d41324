"""Compiled loops that copy runs between two strided places.

Importing this imports Numba, so `closeranks.comms.packing` does it when there is
enough to copy.  A loop is compiled for each length of run when it is first
needed, and kept on disk where Numba finds a folder it may write.

What bounds them, on the machines they were measured on, is memory: runs that are
a page or a few lines apart defeat the processor's own prefetching, hence `ahead`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Longest run that is copied by loads and stores; longer ones by memcpy.
LONGEST = 64
_PREFETCH = "llvm.prefetch"
_L2 = 2  # locality of the prefetch: L1 is too small for what is fetched ahead
_BYTE = ir.IntType(8)


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
    """Ask for the cache line of an address, which need not exist."""
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


_move, _copy, _fetch = intrinsic(_moving), intrinsic(_copying), intrinsic(_fetching)


def _short(unit, tail, ahead, to, at, n2, t2, s2, n1, t1, s1, n0, t0, s0):  # type: ignore[no-untyped-def]
    """Copy runs of ``w = 2**len(unit)`` to ``2 * w`` bytes.

    A run that is no power of two is copied as two words that overlap.  Steps of
    exactly one word and two stand apart, for LLVM to make shuffles of them.
    """
    w = 1 << len(unit)
    for k in range(n2):
        for j in range(n1):
            target, source = to + k * t2 + j * t1, at + k * s2 + j * s1
            if ahead:
                front, step = (source, s0) if abs(s0) > abs(t0) else (target, t0)
                front += ahead * step
                for i in range(n0):
                    _fetch(front + i * step)
                    _move(unit, target, i * t0, source, i * s0)
                    if tail:
                        _move(unit, target + tail, i * t0, source + tail, i * s0)
            elif tail:
                for i in range(n0):
                    _move(unit, target, i * t0, source, i * s0)
                    _move(unit, target + tail, i * t0, source + tail, i * s0)
            elif t0 == w and s0 == 2 * w:
                for i in range(n0):
                    _move(unit, target, i * w, source, i * 2 * w)
            elif t0 == 2 * w and s0 == w:
                for i in range(n0):
                    _move(unit, target, i * 2 * w, source, i * w)
            else:
                for i in range(n0):
                    _move(unit, target, i * t0, source, i * s0)


def _long(run, to, at, n2, t2, s2, n1, t1, s1, n0, t0, s0):  # type: ignore[no-untyped-def]
    """Copy runs of any length."""
    for k in range(n2):
        for j in range(n1):
            for i in range(n0):
                _copy(to + k * t2 + j * t1 + i * t0, at + k * s2 + j * s1 + i * s0, run)


@cache
def short(words: int) -> Callable[..., None]:
    """Compile the loop over short runs, or load it.

    Parameters
    ----------
    words : int
        Binary logarithm of the word: runs are of that many bytes, or up to
        twice as many.

    Returns
    -------
    callable
        Takes the word as a tuple of ``words`` zeros, what the second word of a
        run is ahead of the first, how many runs ahead to fetch, target and source
        address, then count, target stride and source stride of three loops.
    """
    return _compiled(_short, (types.UniTuple(types.int64, words), *(types.int64,) * 13))


@cache
def long() -> Callable[..., None]:
    """Compile the loop over long runs, or load it.

    Returns
    -------
    callable
        Takes the bytes of a run, target and source address, and three loops as
        `short` does.
    """
    return _compiled(_long, (types.int64,) * 12)


def _compiled(function: Callable[..., None], signature: tuple[Any, ...]) -> Callable[..., None]:
    """Give the entry point for one signature: calls need not look for the type."""
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder to write to
        dispatcher = numba.njit(nogil=True)(function)
    dispatcher.compile(signature)
    entry: Callable[..., None] = dispatcher.overloads[signature].entry_point
    return entry
