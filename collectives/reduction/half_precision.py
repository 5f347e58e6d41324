"""float16 and bfloat16 for Numba: 16 bits in memory, float32 in arithmetic.

Every operator widens both operands, works in float32 and rounds once, to the
nearest, ties to even.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

#: Numba's decorator changes what a function takes, which no annotation tells.
_intrinsic: Any = intrinsic
_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


class Half(types.Number):
    """A 16-bit floating type, by NumPy's name."""


FLOAT16, BFLOAT16 = Half("float16"), Half("bfloat16")


@register_model(Half)
class _HalfModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _I16)


@_intrinsic
def widen(context: Any, value: Any) -> Any:  # noqa: ARG001 - Numba's signature
    """Give a half-precision number as float32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        (bits,) = arguments
        if value is FLOAT16:
            return builder.fpext(builder.bitcast(bits, ir.HalfType()), _F32)
        return builder.bitcast(builder.shl(builder.zext(bits, _I32), _I32(16)), _F32)

    return types.float32(value), code


def _narrow(kind: Half) -> Any:
    @_intrinsic
    def narrow(context: Any, value: Any) -> Any:  # noqa: ARG001
        return kind(types.float32), _rounded if kind is BFLOAT16 else _truncated

    return narrow


def _truncated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
    """Round to float16."""
    return builder.bitcast(builder.fptrunc(arguments[0], ir.HalfType()), _I16)


def _rounded(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
    """Round to bfloat16; a NaN becomes the quiet one of its sign."""
    value = arguments[0]
    bits = builder.bitcast(value, _I32)
    odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(bits, builder.add(odd, _I32(0x7FFF)))
    sign = builder.and_(bits, _I32(0x80000000))
    quiet = builder.or_(sign, _I32(0x7FC00000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    chosen = builder.select(is_nan, quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _I32(16)), _I16)


@_intrinsic
def narrow_as(context: Any, value: Any, like: Any) -> Any:  # noqa: ARG001
    """Round a float32 to the half-precision type of ``like``."""
    return like(types.float32, like), _rounded if like is BFLOAT16 else _truncated


_NARROW = {FLOAT16: _narrow(FLOAT16), BFLOAT16: _narrow(BFLOAT16)}


def _arithmetic(symbol: Callable[[Any, Any], Any]) -> None:
    """Teach Numba an operator that gives a number of the same type."""

    @overload(symbol, strict=False)
    def typed(a: Any, b: Any) -> Any:
        if not (isinstance(a, Half) and a is b):
            return None
        narrow = _NARROW[a]
        return lambda a, b: narrow(symbol(widen(a), widen(b)))


def _comparison(symbol: Callable[[Any, Any], Any]) -> None:
    @overload(symbol, strict=False)
    def typed(a: Any, b: Any) -> Any:
        if not (isinstance(a, Half) and a is b):
            return None
        return lambda a, b: symbol(widen(a), widen(b))


_arithmetic(operator.add)
_arithmetic(operator.mul)
_comparison(operator.lt)
_comparison(operator.gt)
_comparison(operator.ne)
