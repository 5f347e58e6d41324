"""The loops that sum bytes up, written for LLVM.

A chunk is cut into lanes that are summed side by side.  An instruction gives
its result only some cycles later, and memory is faster if it is read in
several places.  The sum of bytes followed by zeros is a linear function of the
sum of the bytes, which puts lanes together.  If the processor multiplies
polynomials in wide registers, the sum so far of a lane is folded into its next
line, as in Gopal and others, Fast CRC Computation for Generic Polynomials
Using PCLMULQDQ Instruction (Intel, 2009).

Importing this imports llvmlite.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, Final, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir

#: What the function is called.
NAME: Final = "checksum"
#: Its arguments, all int64: target, source, how many chunks, bytes of each, addresses of
#: the seeds, which become the sums, of the shift of a lane and of the table.
ARGUMENTS: Final = 7
#: Bytes that are copied at a time.
LINE: Final = 64
#: How far ahead memory is asked for, bytes.
_AHEAD: Final = 2048
#: The polynomial, its bits in reverse.
POLYNOMIAL: Final = 0x82F63B78
_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_LINE: Final = ir.VectorType(_I64, LINE // 8)


class Way(NamedTuple):
    """How a processor sums up.

    Attributes
    ----------
    name : str
        Its name.
    needs : tuple of str
        Features, in LLVM's words.
    machines : tuple of str
        Architectures; none: all.
    word : str
        The instruction for eight bytes, by LLVM; none: byte by byte, from a table.
    wide : bool
        Whether it takes and gives 64 bits, of which 32 are zero.
    folds : int
        Bits of the registers in which it multiplies polynomials; 0: in none.
    """

    name: str
    needs: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    word: str = ""
    wide: bool = False
    folds: int = 0

    @property
    def lanes(self) -> int:
        """How many parts of a chunk are summed side by side."""
        return 4 if self.folds else 3


def _x86(name: str, *needs: str, folds: int = 0) -> Way:
    """Give a way of processors that have an instruction for eight bytes."""
    word, machines = "llvm.x86.sse42.crc32.64.64", ("x86_64", "AMD64")
    return Way(name, ("sse4.2", "crc32", *needs), machines, word, wide=True, folds=folds)


#: The ways, the fastest first.
ALL: Final = (
    _x86("avx512", "pclmul", "vpclmulqdq", "avx512f", folds=512),
    _x86("avx2", "pclmul", "vpclmulqdq", "avx2", folds=256),
    _x86("sse4.2"),
    Way("arm", ("crc",), ("aarch64", "arm64"), "llvm.aarch64.crc32cx"),
    Way("table"),
)


@cache
def power(exponent: int) -> int:
    """Give a power of x modulo the polynomial, its bits in reverse.  Local."""
    found = 1 << 31
    for _ in range(exponent):
        found = found >> 1 ^ (POLYNOMIAL if found & 1 else 0)
    return found


@cache
def ways() -> tuple[Way, ...]:
    """Give the ways that this processor knows, the fastest first; local."""
    features, machine = llvm.get_host_cpu_features(), platform.machine()
    return tuple(
        way
        for way in ALL
        if (not way.machines or machine in way.machines)
        and all(features.get(name, False) for name in way.needs)
    )


def write(way: Way, *, copies: bool, past: bool) -> str:
    """Write the function, ``void checksum(...)`` of `ARGUMENTS`.

    Parameters
    ----------
    way : Way
        How.
    copies, past : bool
        Whether bytes are copied, and past the caches; the target is aligned to a
        line then, and so are chunks.

    Returns
    -------
    str
        A module for LLVM.
    """
    module = ir.Module()
    kind = ir.FunctionType(ir.VoidType(), [_I64] * ARGUMENTS)
    function = ir.Function(module, kind, NAME)
    loop = _Loop(ir.IRBuilder(function.append_basic_block()), way, copies, past)
    loop.chunks()
    return str(module)


class _Loop:
    """Writes the loops over chunks, lines, words and bytes."""

    def __init__(self, builder: Any, way: Way, copies: bool, past: bool) -> None:
        self.builder, self.way, self.copies, self.past = builder, way, copies, past
        (self.target, self.source, self.count, self.nbytes,
         self.sums, self.shift, self.table) = builder.function.args  # fmt: skip

    def chunks(self) -> None:
        """Write the whole function."""
        builder = self.builder

        def chunk(number: Any, _: list[Any]) -> list[Any]:
            start = builder.mul(number, self.nbytes)
            place = self._at(self.sums, builder.mul(number, _I64(4)), _I32)
            done, total = self._lanes(start, builder.load(place))
            builder.store(self._rest(start, done, total), place)
            return []

        self._loop(_I64(0), self.count, 1, [], chunk)
        if self.past and "x86" in self.way.word:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(ir.Function(builder.module, kind, "llvm.x86.sse.sfence"), [])
        elif self.past:
            builder.fence("seq_cst")
        builder.ret_void()

    def _lanes(self, start: Any, seed: Any) -> tuple[Any, Any]:
        """Sum the lanes of a chunk up; gives how many bytes that were, and their sum."""
        builder, lanes = self.builder, self.way.lanes
        lane = builder.mul(builder.udiv(self.nbytes, _I64(lanes * LINE)), _I64(LINE))
        total = seed
        for found in self._lines(start, lane):
            total = builder.xor(self._shifted(total), found)
        return builder.mul(lane, _I64(lanes)), total

    def _lines(self, start: Any, lane: Any) -> list[Any]:
        """Write the loop over lines, of all lanes side by side; each starts from zero."""
        builder, lanes = self.builder, range(self.way.lanes)
        state = self._folds if self.way.folds else self._words
        kind = ir.VectorType(_I64, self.way.folds // 64) if self.way.folds else _I32
        each = 8 * LINE // self.way.folds if self.way.folds else 1

        def line(inside: Any, values: list[Any]) -> list[Any]:
            places = [builder.add(start, builder.add(builder.mul(lane, _I64(number)), inside))
                      for number in lanes]  # fmt: skip
            for at in places:
                if self.copies:
                    self._copy_line(at)
                else:
                    self._ask_ahead(at)
            return state(places, values)

        begun = [ir.Constant(kind, None)] * (each * len(lanes))
        found = self._loop(_I64(0), lane, LINE, begun, line)
        return [self._total(found[each * number : each * (number + 1)]) for number in lanes]

    def _words(self, places: list[Any], values: list[Any]) -> list[Any]:
        """Take a line of each lane, word by word."""
        builder = self.builder
        for word in range(LINE // 8):
            for number, at in enumerate(places):
                place = self._at(self.source, builder.add(at, _I64(8 * word)), _I64)
                values[number] = self._word(values[number], builder.load(place, align=1))
        return values

    def _folds(self, places: list[Any], values: list[Any]) -> list[Any]:
        """Take a line of each lane: fold the sum so far of the lane into the line."""
        builder, each = self.builder, len(values) // len(places)
        found = []
        for number, register in enumerate(values):
            at = builder.add(places[number // each], _I64(LINE // each * (number % each)))
            data = builder.load(self._at(self.source, at, register.type), align=1)
            found.append(self._fold(register, data))
        return found

    def _fold(self, register: Any, following: Any) -> Any:
        """Fold a register and the next line into one, of the same sum."""
        builder, kind, name = self.builder, register.type, f"llvm.x86.pclmulqdq.{self.way.folds}"
        # Of each 16 bytes the first eight are the higher powers.
        powers = [power(8 * LINE + 63) << 32, power(8 * LINE - 1) << 32]
        factors = ir.Constant(kind, powers * (kind.count // 2))
        multiply = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(kind, [kind, kind, _I8]), name
        )
        for halves in (0x00, 0x11):
            product = builder.call(multiply, [register, factors, _I8(halves)])
            following = builder.xor(following, product)
        return following

    def _total(self, values: list[Any]) -> Any:
        """Give the sum of a lane from its registers."""
        if not self.way.folds:
            return values[0]
        total, words = _I32(0), self.way.folds // 64
        for register in values:
            for number in range(words):
                word = self.builder.extract_element(register, _I32(number))
                total = self._word(total, word)
        return total

    def _rest(self, start: Any, done: Any, total: Any) -> Any:
        """Write the loop over bytes that fill no lines."""
        builder = self.builder

        def byte(inside: Any, values: list[Any]) -> list[Any]:
            at = builder.add(start, inside)
            value = builder.load(self._at(self.source, at, _I8))
            if self.copies:
                builder.store(value, self._at(self.target, at, _I8))
            return [self._byte(values[0], builder.zext(value, _I32))]

        return self._loop(done, self.nbytes, 1, [total], byte)[0]

    def _copy_line(self, at: Any) -> None:
        builder = self.builder
        line = builder.load(self._at(self.source, at, _LINE), align=1)
        store = builder.store(line, self._at(self.target, at, _LINE), align=1)
        if self.past:
            store.align = LINE
            store.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))

    def _ask_ahead(self, at: Any) -> None:
        """Prefetch the bytes that are read next: the processor alone stops at pages."""
        builder, name, place = self.builder, "llvm.prefetch.p0", _I8.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [place, _I32, _I32, _I32])
        ask = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        ahead = self._at(self.source, builder.add(at, _I64(_AHEAD)), _I8)
        builder.call(ask, [ahead, _I32(0), _I32(2), _I32(1)])  # to read, near, data

    def _word(self, value: Any, word: Any) -> Any:
        """Write the update of a sum by eight bytes."""
        builder, way = self.builder, self.way
        if not way.word:
            for byte in range(8):
                shifted = builder.lshr(word, _I64(8 * byte))
                value = self._byte(value, builder.trunc(shifted, _I32))
            return value
        kind = _I64 if way.wide else _I32
        known = builder.module.globals.get(way.word)
        function = known or ir.Function(
            builder.module, ir.FunctionType(kind, [kind, _I64]), way.word
        )
        if not way.wide:
            return builder.call(function, [value, word])
        return builder.trunc(builder.call(function, [builder.zext(value, _I64), word]), _I32)

    def _byte(self, value: Any, byte: Any) -> Any:
        """Write the update of a sum by a byte, from the table."""
        builder = self.builder
        row = builder.and_(builder.xor(value, byte), _I32(255))
        inside = builder.mul(builder.zext(row, _I64), _I64(4))
        return builder.xor(
            builder.load(self._at(self.table, inside, _I32)), builder.lshr(value, _I32(8))
        )

    def _shifted(self, value: Any) -> Any:
        """Write the update of a sum by a lane of zeros."""
        builder = self.builder

        def bit(number: Any, values: list[Any]) -> list[Any]:
            part = builder.load(self._at(self.shift, builder.mul(number, _I64(4)), _I32))
            chosen = builder.trunc(builder.lshr(value, builder.trunc(number, _I32)), _I1)
            return [builder.xor(values[0], builder.select(chosen, part, _I32(0)))]

        return self._loop(_I64(0), _I64(32), 1, [_I32(0)], bit)[0]

    def _at(self, address: Any, inside: Any, kind: Any) -> Any:
        """Write a pointer."""
        return self.builder.inttoptr(self.builder.add(address, inside), kind.as_pointer())

    def _loop(self, start: Any, stop: Any, step: int, begun: list[Any], body: Any) -> list[Any]:
        """Write a loop that carries values; ``body(index, values)`` gives the next ones."""
        builder, before = self.builder, self.builder.block
        head, inner, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        index, values = builder.phi(_I64), [builder.phi(value.type) for value in begun]
        index.add_incoming(start, before)
        for value, first in zip(values, begun, strict=True):
            value.add_incoming(first, before)
        builder.cbranch(builder.icmp_unsigned("<", index, stop), inner, after)
        builder.position_at_end(inner)
        following = body(index, list(values))
        index.add_incoming(builder.add(index, _I64(step)), builder.block)
        for value, later in zip(values, following, strict=True):
            value.add_incoming(later, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return values
