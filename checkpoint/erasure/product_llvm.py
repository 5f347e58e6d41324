"""The loop that multiplies blocks by a matrix, written for LLVM.

A row of the result is summed up in registers over all blocks, column by column
of some vectors, so that each byte is read once and written once.  The product
of a vector and a factor is written by one of the `Instructions`: the factor
becomes an *operand*, and the loop around it is the same for all.  Three kinds
are known:

affine
    A product is linear in the bits of a byte, so it is a matrix of 8 x 8 bits,
    and GFNI multiplies by one.  (Its own product is in another field, 0x11B.)
shuffle
    The product of a byte is the sum of the products of its low and of its high
    four bits.  Each has 16 values, which fit a register (J. S. Plank, K. M.
    Greenan, E. L. Miller, FAST 2013).
bits
    A product is the sum of factor x 2^b over the bits b of a byte: for
    processors that have neither instruction.

Importing this imports llvmlite.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from closeranks.checkpoint.erasure.generator_matrix import PRODUCTS, Bytes

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Instructions(ABC):
    """One way to multiply.

    Parameters
    ----------
    name : str
        Its name for callers.
    width : int
        Bytes of a vector.
    registers : int
        Vectors that a loop may sum up into.
    needs : tuple of str
        Features of the processor, in LLVM's words.
    machines : tuple of str
        Architectures, in those of `platform.machine`; none: all.
    intrinsic : str
        LLVM's name of the instruction.
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
        """Write the part that is done once a vector, for all factors."""

    @abstractmethod
    def multiply(self, builder: Any, prepared: Any, operand: Any) -> Any:
        """Write the product; ``operand`` points at its bytes."""

    def _call(self, builder: Any, kind: Any, *arguments: Any) -> Any:
        """Write the instruction."""
        known = builder.module.globals.get(self.intrinsic)
        function = known or ir.Function(builder.module, kind, self.intrinsic)
        return builder.call(function, arguments)


def _spread(builder: Any, value: Any, lanes: int) -> Any:
    """Write a vector with all lanes alike."""
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


_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _I8.as_pointer()
#: What the function is called.
NAME: Final = "product"
#: Its arguments: how many blocks; their addresses; those of the results; the operands,
#: of the first block those of all rows that have any, then of the next; bytes of a block.
_ARGUMENTS: Final = (_I64, _I64.as_pointer(), _I64.as_pointer(), _POINTER, _I64)
#: Lines in a column at most.
_MOST_UNROLLED: Final = 4


class ProductShape(NamedTuple):
    """The kind of a loop.

    Attributes
    ----------
    rows : int
        Results.
    ones : bool
        Whether the first row is all ones, and has no operands.
    adds : bool
        Whether products are added to the results.
    past : bool
        Whether results go past the caches; they are aligned to vectors.
    """

    rows: int
    ones: bool
    adds: bool
    past: bool


def write(way: Instructions, shape: ProductShape) -> str:
    """Write the function, ``void product(n, blocks, results, operands, nbytes)``.

    Parameters
    ----------
    way : Instructions
        How vectors are multiplied.
    shape : ProductShape
        Rows and ends.

    Returns
    -------
    str
        A module for LLVM; ``nbytes`` has to be a multiple of a vector's.
    """
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), _ARGUMENTS), NAME)
    builder = ir.IRBuilder(function.append_basic_block())
    loop = _Loop(builder, way, shape)
    unrolled = min(_MOST_UNROLLED, max(1, way.registers // shape.rows))
    column = _I64(unrolled * way.width)
    whole = builder.mul(builder.udiv(loop.nbytes, column), column)
    loop.columns(_I64(0), whole, unrolled)
    if unrolled > 1:
        loop.columns(whole, loop.nbytes, 1)
    if shape.past and "x86" in way.intrinsic:
        fence = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse.sfence")
        builder.call(fence, [])
    elif shape.past:
        builder.fence("seq_cst")
    builder.ret_void()
    return str(module)


class _Loop:
    """Writes the loops over columns and blocks."""

    def __init__(self, builder: Any, way: Instructions, shape: ProductShape) -> None:
        self.builder, self.way, self.shape = builder, way, shape
        self.count, self.blocks, results, self.operands, self.nbytes = builder.function.args
        self.results = [
            builder.load(builder.gep(results, [_I64(row)])) for row in range(shape.rows)
        ]

    def columns(self, start: Any, stop: Any, unrolled: int) -> None:
        """Write the loop over columns of so many vectors."""
        builder, before = self.builder, self.builder.block
        head, body, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        at = builder.phi(_I64)
        at.add_incoming(start, before)
        builder.cbranch(builder.icmp_unsigned("<", at, stop), body, after)
        builder.position_at_end(body)
        sums = self._sum(at, unrolled)
        for (row, step), value in sums.items():
            store = builder.store(value, self._place(self.results[row], at, step), align=1)
            if self.shape.past:
                store.align = self.way.width
                store.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))
        at.add_incoming(builder.add(at, _I64(unrolled * self.way.width)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    def _sum(self, at: Any, unrolled: int) -> dict[tuple[int, int], Any]:
        """Write the loop over blocks; give row and step -> sum."""
        builder, way, shape = self.builder, self.way, self.shape
        places = [(row, step) for row in range(shape.rows) for step in range(unrolled)]
        zero = ir.Constant(way.vector, None)
        begun = dict.fromkeys(places, zero)
        if shape.adds:
            for row, step in places:
                begun[row, step] = builder.load(self._place(self.results[row], at, step), align=1)
        before, body, after = builder.block, *(builder.append_basic_block() for _ in range(2))
        builder.branch(body)
        builder.position_at_end(body)
        number, sums = builder.phi(_I64), {place: builder.phi(way.vector) for place in places}
        number.add_incoming(_I64(0), before)
        for place in places:
            sums[place].add_incoming(begun[place], before)
        added = self._add_block(number, at, dict(sums), unrolled)
        following = builder.add(number, _I64(1))
        number.add_incoming(following, body)
        for place in places:
            sums[place].add_incoming(added[place], body)
        builder.cbranch(builder.icmp_unsigned("<", following, self.count), body, after)
        builder.position_at_end(after)
        return added

    def _add_block(
        self, number: Any, at: Any, sums: dict[tuple[int, int], Any], unrolled: int
    ) -> dict[tuple[int, int], Any]:
        """Write the update of the sums by one block."""
        builder, way, shape = self.builder, self.way, self.shape
        block = builder.load(builder.gep(self.blocks, [number]))
        vectors = [builder.load(self._place(block, at, step), align=1) for step in range(unrolled)]
        if shape.ones:
            for step, vector in enumerate(vectors):
                sums[0, step] = builder.xor(sums[0, step], vector)
        others = range(int(shape.ones), shape.rows)
        prepared = [way.prepare(builder, vector) for vector in vectors] if others else []
        first = builder.mul(number, _I64(len(others) * way.operand_bytes))
        for index, row in enumerate(others):
            inside = builder.add(first, _I64(index * way.operand_bytes))
            operand = builder.gep(self.operands, [inside])
            for step in range(unrolled):
                product = way.multiply(builder, prepared[step], operand)
                sums[row, step] = builder.xor(sums[row, step], product)
        return sums

    def _place(self, address: Any, at: Any, step: int) -> Any:
        """Write a pointer to a vector."""
        inside = self.builder.add(at, _I64(step * self.way.width))
        kind = self.way.vector.as_pointer()
        return self.builder.inttoptr(self.builder.add(address, inside), kind)
