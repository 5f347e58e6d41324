"""C functions that the compiled loop calls by their addresses, as intrinsics.

Importing this imports Numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


def _calling(result: Any) -> Callable[..., Any]:
    """Generate a call of the C function at the address that comes first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        address, *given = arguments
        returned = context.get_value_type(result)
        kind = ir.FunctionType(returned, [one.type for one in given])
        return builder.call(builder.inttoptr(address, kind.as_pointer()), given)

    return generate


def _seconds(typing: Any, function: Any) -> Any:
    """``double function(void)``."""
    del typing
    return types.float64(function), _calling(types.float64)


def _call0(typing: Any, function: Any) -> Any:
    """``int function(void)``."""
    del typing
    return types.int32(function), _calling(types.int32)


def _call1(typing: Any, function: Any, a: Any) -> Any:
    """``int function(a)``."""
    del typing
    return types.int32(function, a), _calling(types.int32)


def _call3(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    """``f(a, b, c)``, whose result, if any, nobody reads."""
    del typing
    return types.int64(function, a, b, c), _calling(types.int64)


def _ask3(typing: Any, function: Any, a: Any, b: Any, c: Any) -> Any:
    """``int function(a, b, c)``."""
    del typing
    return types.int32(function, a, b, c), _calling(types.int32)


def _call5(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    """``int function(a, ..., e)``."""
    del typing
    return types.int32(function, a, b, c, d, e), _calling(types.int32)


def _call7(
    typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any
) -> Any:
    """``int function(a, ..., g)``."""
    del typing
    return types.int32(function, a, b, c, d, e, f, g), _calling(types.int32)


def _word(typing: Any, address: Any) -> Any:
    """Read an int64 that another thread writes."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        place = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(place, "monotonic", 8)

    return types.int64(address), generate


seconds: Final[Any] = intrinsic(_seconds)
call0: Final[Any] = intrinsic(_call0)
call1: Final[Any] = intrinsic(_call1)
call3: Final[Any] = intrinsic(_call3)
ask3: Final[Any] = intrinsic(_ask3)
call5: Final[Any] = intrinsic(_call5)
call7: Final[Any] = intrinsic(_call7)
word: Final[Any] = intrinsic(_word)
