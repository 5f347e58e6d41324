"""Memory and C functions by their addresses, as intrinsics.

Importing this imports Numba.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_intrinsic: Any = intrinsic


@_intrinsic
def word(context: Any, address: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Read an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.load(builder.inttoptr(arguments[0], _I64.as_pointer()))

    return types.int64(types.int64), code


@_intrinsic
def byte_at(context: Any, address: Any) -> Any:  # noqa: ARG001
    """Read a byte."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        found = builder.load(builder.inttoptr(arguments[0], _I8.as_pointer()))
        return builder.zext(found, _I64)

    return types.int64(types.int64), code


@_intrinsic
def set_word(context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Write an int64."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        builder.store(arguments[1], builder.inttoptr(arguments[0], _I64.as_pointer()))

    return types.void(types.int64, types.int64), code


def _calling(result: Any, function: Any, given: list[Any], builder: Any) -> Any:
    kind = ir.FunctionType(result, [_I64] * len(given))
    return builder.call(builder.inttoptr(function, kind.as_pointer()), given)


@_intrinsic
def call0(context: Any, function: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Call ``int64 function(void)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], [], builder)

    return types.int64(types.int64), code


@_intrinsic
def call1(context: Any, function: Any, a: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a)``; of a void function the result means nothing."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 2), code


@_intrinsic
def call2(context: Any, function: Any, a: Any, b: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a, b)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 3), code


@_intrinsic
def call3(context: Any, function: Any, a: Any, b: Any, c: Any) -> Any:  # noqa: ARG001
    """Call ``int function(a, b, c)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        answer = _calling(_I32, arguments[0], arguments[1:], builder)
        return builder.sext(answer, _I64)

    return types.int64(*[types.int64] * 4), code


@_intrinsic
def call4(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a, b, c, d)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 5), code


@_intrinsic
def call5(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:  # noqa: ARG001
    """Call ``int64 function(a, b, c, d, e)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return _calling(_I64, arguments[0], arguments[1:], builder)

    return types.int64(*[types.int64] * 6), code


@_intrinsic
def call7(context: Any, at: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:  # noqa: ARG001
    """Call ``int function(a, b, c, d, e, f, g)``, where a parameter may be an int."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        answer = _calling(_I32, arguments[0], arguments[1:], builder)
        return builder.sext(answer, _I64)

    return types.int64(*[types.int64] * 8), code


@_intrinsic
def is_true(context: Any, function: Any, a: Any) -> Any:  # noqa: ARG001
    """Call ``int function(a)``."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        answer = _calling(_I32, arguments[0], arguments[1:], builder)
        return builder.icmp_signed("!=", answer, _I32(0))

    return types.boolean(*[types.int64] * 2), code


@_intrinsic
def kernel5(context: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:  # noqa: ARG001
    """Call ``bool function(a, b, c, d, e)``, compiled by Numba."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        answer = _calling(_I8, arguments[0], arguments[1:], builder)
        return builder.icmp_signed("!=", answer, _I8(0))

    return types.boolean(*[types.int64] * 6), code
