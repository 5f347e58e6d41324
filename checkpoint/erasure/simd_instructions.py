"""How processors multiply many bytes by one, in the field of 256 elements.

A way of a processor is told as code for LLVM, one vector at a time, and as the
*operand* that it makes of a factor, so the loop around it is the same for all:
`closeranks.checkpoint.erasure.product_llvm`.  Three ways are known:

affine
    A product is linear in the bits of a byte, so it is a matrix of 8 x 8 bits,
    and GFNI multiplies by one.  (Its own product is in another field, 0x11B.)
shuffle
    The product of a byte is that of its low and of its high four bits, and of
    each there are 16, which fit a register (J. S. Plank, K. M. Greenan, E. L.
    Miller, FAST 2013).
bits
    A product is the sum of factor x 2^b over the bits b of a byte: for
    processors that have neither.

Importing this imports llvmlite.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from closeranks.checkpoint.erasure.gf256 import PRODUCTS, Bytes

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Instructions(ABC):
    """One way to multiply.

    Parameters
    ----------
    name : str
        What it is called by whom asks for it.
    width : int
        Bytes of a vector.
    registers : int
        Vectors that a loop may sum up into.
    needs : tuple of str
        Features of the processor, in LLVM's words.
    machines : tuple of str
        Architectures, in those of `platform.machine`; none: all.
    intrinsic : str
        What the instruction is called by LLVM.
    """

    #: Bytes of an operand.
    operand_bytes: ClassVar[int]

    def __init__(
        self,
        name: str,
        width: int,
        registers: int,
        needs: tuple[str, ...] = (),
        machines: tuple[str, ...] = (),
        intrinsic: str = "",
    ) -> None:
        self.name, self.width, self.registers = name, width, registers
        self.needs, self.machines, self.intrinsic = needs, machines, intrinsic
        self.vector = ir.VectorType(_I8, width)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def is_here(self) -> bool:
        """Whether this processor has it."""
        features = llvm.get_host_cpu_features()
        here = not self.machines or platform.machine() in self.machines
        return here and all(features.get(name, False) for name in self.needs)

    @abstractmethod
    def operands(self, factors: Bytes) -> Bytes:
        """Make operands of factors: uint8 of any shape (...) into (..., operand_bytes)."""

    @abstractmethod
    def prepare(self, builder: Any, vector: Any) -> Any:
        """Write what is done once with a vector, whatever it is multiplied by."""

    @abstractmethod
    def multiply(self, builder: Any, prepared: Any, operand: Any) -> Any:
        """Write the product; ``operand`` points at its bytes."""

    def _call(self, builder: Any, kind: Any, *arguments: Any) -> Any:
        """Write the instruction."""
        known = builder.module.globals.get(self.intrinsic)
        function = known or ir.Function(builder.module, kind, self.intrinsic)
        return builder.call(function, arguments)


def _spread(builder: Any, value: Any, lanes: int) -> Any:
    """Write a vector whose lanes are all alike."""
    kind = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


class Affine(Instructions):
    """GFNI's ``gf2p8affineqb``."""

    operand_bytes = 8

    def operands(self, factors: Bytes) -> Bytes:
        """Give bit matrices: byte 7 - i holds which bits of a byte bit i is the sum of."""
        columns = PRODUCTS[factors[..., None], 1 << np.arange(8)]  # what each bit becomes
        bits = columns[..., None, :] >> np.arange(8)[:, None] & 1  # (..., i, j)
        rows = np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little")[..., 0]
        return np.ascontiguousarray(rows[..., ::-1])

    def prepare(self, builder: Any, vector: Any) -> Any:  # noqa: ARG002
        """Write nothing."""
        return vector

    def multiply(self, builder: Any, prepared: Any, operand: Any) -> Any:
        """Write one instruction."""
        bits = builder.load(builder.bitcast(operand, _I64.as_pointer()), align=8)
        matrix = builder.bitcast(_spread(builder, bits, self.width // 8), self.vector)
        kind = ir.FunctionType(self.vector, [self.vector, self.vector, _I8])
        return self._call(builder, kind, prepared, matrix, _I8(0))


class Shuffle(Instructions):
    """Look up 16 bytes at a time: ``pshufb``, ``tbl``."""

    operand_bytes = 32

    def operands(self, factors: Bytes) -> Bytes:
        """Give the products of 0 to 15, and of 0, 16 to 240."""
        low = np.arange(16)
        tables: Bytes = PRODUCTS[factors[..., None], np.concatenate([low, low << 4])]
        return tables

    def prepare(self, builder: Any, vector: Any) -> Any:
        """Write low and high four bits."""
        low = builder.and_(vector, ir.Constant(self.vector, [15] * self.width))
        return low, builder.lshr(vector, ir.Constant(self.vector, [4] * self.width))

    def multiply(self, builder: Any, prepared: Any, operand: Any) -> Any:
        """Write two look-ups and a sum."""
        sixteen, kind = ir.VectorType(_I8, 16), ir.FunctionType(self.vector, [self.vector] * 2)
        places = ir.Constant(ir.VectorType(_I32, self.width), [*range(16)] * (self.width // 16))
        found = []
        for half, bits in enumerate(prepared):
            start = builder.gep(operand, [_I64(16 * half)])
            table = builder.load(builder.bitcast(start, sixteen.as_pointer()), align=16)
            table = builder.shuffle_vector(table, ir.Constant(sixteen, ir.Undefined), places)
            found.append(self._call(builder, kind, table, bits))
        return builder.xor(*found)


class Bits(Instructions):
    """Mask and add, bit by bit."""

    operand_bytes = 8

    def operands(self, factors: Bytes) -> Bytes:
        """Give the products of 1, 2, 4 to 128."""
        powers: Bytes = PRODUCTS[factors[..., None], 1 << np.arange(8)]
        return powers

    def prepare(self, builder: Any, vector: Any) -> Any:
        """Write eight masks."""
        zero = ir.Constant(self.vector, None)
        masks = []
        for bit in range(8):
            only = builder.and_(vector, ir.Constant(self.vector, [1 << bit] * self.width))
            masks.append(builder.sext(builder.icmp_unsigned("!=", only, zero), self.vector))
        return masks

    def multiply(self, builder: Any, prepared: Any, operand: Any) -> Any:
        """Write the sum over the bits."""
        total: Any = None
        for bit, mask in enumerate(prepared):
            power = builder.load(builder.gep(operand, [_I64(bit)]))
            part = builder.and_(mask, _spread(builder, power, self.width))
            total = part if total is None else builder.xor(total, part)
        return total


_X86, _ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
_GFNI, _PSHUFB = "llvm.x86.vgf2p8affineqb", "llvm.x86"
#: The ways, the fastest first.
ALL: Final[tuple[Instructions, ...]] = (
    Affine("gfni512", 64, 12, ("gfni", "avx512f", "avx512bw"), _X86, f"{_GFNI}.512"),
    Affine("gfni256", 32, 8, ("gfni", "avx2"), _X86, f"{_GFNI}.256"),
    Shuffle("avx512", 64, 12, ("avx512f", "avx512bw"), _X86, f"{_PSHUFB}.avx512.pshuf.b.512"),
    Shuffle("avx2", 32, 6, ("avx2",), _X86, f"{_PSHUFB}.avx2.pshuf.b"),
    Shuffle("ssse3", 16, 4, ("ssse3",), _X86, f"{_PSHUFB}.ssse3.pshuf.b.128"),
    Shuffle("neon", 16, 12, (), _ARM, "llvm.aarch64.neon.tbl1.v16i8"),
    Bits("portable", 16, 2),
)


@cache
def here() -> tuple[Instructions, ...]:
    """Give the ways that this processor knows, the fastest first; local."""
    return tuple(way for way in ALL if way.is_here)
