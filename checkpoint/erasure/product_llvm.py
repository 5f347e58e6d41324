"""The loop that multiplies blocks by a matrix, written for LLVM.

A row of the result is summed up in registers over all blocks, column by column
of some vectors, so that each byte is read once and written once.  Importing
this imports llvmlite.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from llvmlite import ir

from closeranks.checkpoint.erasure.simd_instructions import Instructions

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _I8.as_pointer()
#: What the function is called.
NAME: Final = "product"
#: Its arguments: how many blocks; their addresses; those of the results; the operands,
#: of the first block those of all rows that have any, then of the next; bytes of a block.
_ARGUMENTS: Final = (_I64, _I64.as_pointer(), _I64.as_pointer(), _POINTER, _I64)
#: Lines in a column at most.
_MOST_UNROLLED: Final = 4


class Shape(NamedTuple):
    """What a loop is made for.

    Attributes
    ----------
    rows : int
        Results.
    ones : bool
        Whether the first row is all ones, and has no operands.
    adds : bool
        Whether products are added to what is there.
    past : bool
        Whether results go past the caches; they are aligned to vectors.
    """

    rows: int
    ones: bool
    adds: bool
    past: bool


def write(way: Instructions, shape: Shape) -> str:
    """Write the function, ``void product(n, blocks, results, operands, nbytes)``.

    Parameters
    ----------
    way : Instructions
        How vectors are multiplied.
    shape : Shape
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

    def __init__(self, builder: Any, way: Instructions, shape: Shape) -> None:
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
        """Write what one block adds to the sums."""
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
