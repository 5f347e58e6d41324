"""How the numbers of a plan follow from the count of its call.

A builder is run once with a count that is a `FromCount`: a whole number that
notes in a `CountRecord` what is computed from it, and how each comparison
ended.  What is left is a program without branches, and conditions.  For every
other count that meets the conditions the builder would take the same branches.
So its steps are the same, but for numbers that the program computes exactly.

A number of segments may be used as an index, say of a ``range``: that it is
this number is a condition then.  A number that is used in any other way (as a
float, as a key of a dictionary) raises `Unfollowed`: nothing is proved, and
such a plan is written anew for each count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from closeranks.collectives.plans.block import Block, Buffer
from closeranks.collectives.plans.count_operations import Operation, Relation
from closeranks.collectives.plans.plan_type import Plan
from closeranks.collectives.plans.schedule import Schedule, Step, StepTable, lower
from closeranks.collectives.plans.table_columns import BLOCK, SOURCE, WIDTH, Kind

#: The largest count that a record is for.
LARGEST_COUNT: Final = 1 << 40
#: A number that may be an index is the same for so many counts in a row, at least.
_ALIKE: Final = 1 << 10
#: No number may become larger, so that int64 holds it in bytes too.
_LARGEST: Final = 1 << 56
#: No record has more numbers.
_MOST: Final = 1 << 16


class Unfollowed(Exception):
    """A number is used in a way that a record does not follow."""


_Entry = tuple[int, int, int]


class CountRecord:
    """What is computed from one count.

    Parameters
    ----------
    count : int
        The count for which the comparisons are decided.

    Attributes
    ----------
    entries : list of (int, int, int)
        `Operation` and operands of every number; equal ones are one number.
    conditions : dict of (int, int) to None
        Number and its `Relation` to 0, in the order in which they were met.
    count : FromCount
        The first number.
    """

    def __init__(self, count: int) -> None:
        if not 0 <= count <= LARGEST_COUNT:
            raise Unfollowed(f"a count of {count}")
        self.entries: list[_Entry] = []
        self.conditions: dict[tuple[int, int], None] = {}
        self._known: dict[_Entry, FromCount] = {}
        self.count = self.number((Operation.COUNT, 0, 0), count, LARGEST_COUNT)

    def number(self, entry: _Entry, value: int, largest: int) -> FromCount:
        """Give the number of an entry, noted once."""
        found = self._known.get(entry)
        if found is None:
            if largest > _LARGEST or len(self.entries) == _MOST:
                raise Unfollowed("too many numbers, or too large ones")
            found = self._known[entry] = FromCount(self, len(self.entries), value, largest)
            self.entries.append(entry)
        return found

    def plus(self, number: FromCount, constant: int) -> FromCount:
        """Add a constant."""
        operation, base, more = self.entries[number.place]
        at, value, largest = number.place, number.value + constant, number.largest + abs(constant)
        if operation == Operation.PLUS:
            at, constant = base, constant + more
        if constant == 0:
            return number if at == number.place else self._at(at)
        return self.number((Operation.PLUS, at, constant), value, largest)

    def sum(self, one: FromCount, other: FromCount) -> FromCount:
        """Add two numbers."""
        entry = (Operation.ADD, one.place, other.place)
        return self.number(entry, one.value + other.value, one.largest + other.largest)

    def difference(self, one: FromCount, other: FromCount) -> FromCount | int:
        """Subtract a number; a constant where both differ by one."""
        (base, more), (others, others_more) = self._offset(one), self._offset(other)
        if base == others:
            return more - others_more
        entry = (Operation.SUBTRACT, one.place, other.place)
        return self.number(entry, one.value - other.value, one.largest + other.largest)

    def product(self, number: FromCount, constant: int) -> FromCount | int:
        """Multiply by a constant."""
        operation, base, factor = self.entries[number.place]
        if constant == 0:
            return 0
        if operation == Operation.TIMES:
            return self.product(self._at(base), factor * constant)
        if constant == 1:
            return number
        entry = (Operation.TIMES, number.place, constant)
        return self.number(entry, number.value * constant, number.largest * abs(constant))

    def quotient(self, number: FromCount, constant: int) -> FromCount | int:
        """Divide by a constant, rounding down."""
        if constant < 1:
            raise Unfollowed(f"division by {constant}")
        operation, base, factor = self.entries[number.place]
        if operation == Operation.TIMES and factor % constant == 0:
            return self.product(self._at(base), factor // constant)
        if constant == 1:
            return number
        entry = (Operation.OVER, number.place, constant)
        return self.number(entry, number.value // constant, number.largest // constant + 1)

    def remainder(self, number: FromCount, constant: int) -> FromCount:
        """Give what such a division leaves."""
        if constant < 1:
            raise Unfollowed(f"division by {constant}")
        entry = (Operation.MODULO, number.place, constant)
        return self.number(entry, number.value % constant, constant)

    def is_multiple(self, number: FromCount, other: FromCount) -> bool:
        """Tell whether a number is another one times a constant."""
        operation, base, _ = self.entries[number.place]
        return number is other or (operation == Operation.TIMES and base == other.place)

    def compare(self, number: FromCount, other: Any, relation: Relation) -> bool:
        """Decide a comparison, and note how it ended."""
        gap = number - other
        if not isinstance(gap, FromCount):
            return _HOLDS[relation](gap)
        holds: bool = _HOLDS[relation](gap.value)
        self.conditions[gap.place, relation if holds else _OPPOSITE[relation]] = None
        return holds

    def _at(self, place: int) -> FromCount:
        return self._known[self.entries[place]]

    def _offset(self, number: FromCount) -> tuple[int, int]:
        """Take a number apart into another one and a constant."""
        operation, base, constant = self.entries[number.place]
        return (base, constant) if operation == Operation.PLUS else (number.place, 0)


_HOLDS: Final[dict[int, Callable[[int], bool]]] = {
    Relation.EQUAL: lambda gap: gap == 0,
    Relation.UNEQUAL: lambda gap: gap != 0,
    Relation.LESS: lambda gap: gap < 0,
    Relation.AT_LEAST: lambda gap: gap >= 0,
    Relation.AT_MOST: lambda gap: gap <= 0,
    Relation.MORE: lambda gap: gap > 0,
}
_OPPOSITE: Final = {relation: Relation(relation ^ 1) for relation in Relation}


class FromCount:
    """A whole number that follows from the count.

    It is no ``int``, so that no C code takes its value unseen.

    Attributes
    ----------
    place : int
        Where it stands in its record.
    value : int
        What it is for the count of the record.
    largest : int
        No count that a record is for makes it, or its negative, larger.
    """

    __slots__ = ("_record", "largest", "place", "value")
    #: Arithmetic with NumPy's numbers comes here too.
    __array_ufunc__ = None

    def __init__(self, record: CountRecord, place: int, value: int, largest: int) -> None:
        self._record, self.place, self.value, self.largest = record, place, value, largest

    def __repr__(self) -> str:
        return str(self.value)

    def __add__(self, other: Any) -> FromCount:
        if isinstance(other, FromCount):
            return self._record.sum(self, other)
        return self._record.plus(self, _constant(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> FromCount | int:
        if isinstance(other, FromCount):
            return self._record.difference(self, other)
        return self._record.plus(self, -_constant(other))

    def __rsub__(self, other: Any) -> FromCount | int:
        return -self + _constant(other)

    def __neg__(self) -> FromCount | int:
        return self._record.product(self, -1)

    def __mul__(self, other: Any) -> FromCount | int:
        return self._record.product(self, _constant(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> FromCount | int:
        if isinstance(other, FromCount) and self._record.is_multiple(self, other) and other:
            return self.value // other.value
        return self._record.quotient(self, _constant(other))

    def __rfloordiv__(self, other: Any) -> int:
        return _constant(other) // self.__index__()

    def __mod__(self, other: Any) -> FromCount:
        return self._record.remainder(self, _constant(other))

    def __eq__(self, other: object) -> bool:
        return self._record.compare(self, other, Relation.EQUAL)

    def __ne__(self, other: object) -> bool:
        return self._record.compare(self, other, Relation.UNEQUAL)

    def __lt__(self, other: Any) -> bool:
        return self._record.compare(self, other, Relation.LESS)

    def __le__(self, other: Any) -> bool:
        return self._record.compare(self, other, Relation.AT_MOST)

    def __gt__(self, other: Any) -> bool:
        return self._record.compare(self, other, Relation.MORE)

    def __ge__(self, other: Any) -> bool:
        return self._record.compare(self, other, Relation.AT_LEAST)

    def __bool__(self) -> bool:
        return self._record.compare(self, 0, Relation.UNEQUAL)

    def __hash__(self) -> int:
        _refuse("a key")

    def __index__(self) -> int:
        if self.largest > LARGEST_COUNT // _ALIKE or self != self.value:
            _refuse("an index")
        return self.value

    def __int__(self) -> int:
        _refuse("an int")

    def __float__(self) -> float:
        _refuse("a float")

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(name)


def _refuse(use: str) -> NoReturn:
    raise Unfollowed(f"used as {use}")


def _constant(other: Any) -> int:
    """Read the other operand: a number that the count does not change, or not often."""
    if isinstance(other, (int, np.integer, FromCount)):
        return other.__index__()
    raise Unfollowed(f"computed with {type(other).__name__}")


Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SizedTable:
    """A rank's steps for all counts that meet some conditions.

    Attributes
    ----------
    table : StepTable
        The steps for one count.
    entries : ndarray, shape (n, 3), dtype int64
        `CountRecord.entries`: how ``n`` numbers follow from the count.
    conditions : ndarray, shape (m, 2), dtype int64
        Numbers, and how they compare with 0 where the steps are these.
    cells : ndarray, shape (c, 2), dtype int64
        Places in ``table.rows``, all rows one after the other, and their numbers.
    sizes : ndarray, shape (s, 2), dtype int64
        Buffers, and the numbers of their items.
    """

    table: StepTable
    entries: Numbers
    conditions: Numbers
    cells: Numbers
    sizes: Numbers

    def values(self, count: int) -> list[int]:
        """Compute all numbers for a count.  Local; compiled code takes no time for it."""
        values: list[int] = []
        for operation, a, b in self.entries.tolist():
            compute = _COMPUTED.get(operation)
            values.append(count if compute is None else compute(values, a, b))
        return values

    def fits(self, count: int) -> bool:
        """Tell whether a count meets the conditions.  Local."""
        if not 0 <= count <= LARGEST_COUNT:
            return False
        values = self.values(count)
        return all(_HOLDS[relation](values[place]) for place, relation in self.conditions.tolist())


_COMPUTED: Final[dict[int, Callable[[list[int], int, int], int]]] = {
    Operation.ADD: lambda values, a, b: values[a] + values[b],
    Operation.SUBTRACT: lambda values, a, b: values[a] - values[b],
    Operation.PLUS: lambda values, a, b: values[a] + b,
    Operation.TIMES: lambda values, a, b: values[a] * b,
    Operation.OVER: lambda values, a, b: values[a] // b,
    Operation.MODULO: lambda values, a, b: values[a] % b,
}


def sized_table(plan: Plan, rank: int) -> SizedTable:
    """Write the steps of a rank for all counts that share them.

    Parameters
    ----------
    plan : Plan
        Of one count.
    rank : int
        The rank, ``0 <= rank < size``.

    Returns
    -------
    SizedTable
        With the table of that count.

    Raises
    ------
    Unfollowed
        If the algorithm does not `Algorithm.follows` the count, or not to that
        size; so do steps that are no message, reduction or copy.
    """
    if not plan.algorithm.follows or plan.problem.counts is not None:
        raise Unfollowed(f"{plan.algorithm.name} of {plan.problem.operation}")
    record = CountRecord(plan.problem.count)
    problem = replace(plan.problem, count=record.count)  # type: ignore[arg-type]
    script, steps = Plan(problem, plan.algorithm).script(rank)
    if script.registers or script.constants:
        raise Unfollowed("registers")
    cells: list[tuple[int, int]] = []
    fixed = [_fixed(number, step, cells) for number, step in enumerate(steps)]
    capacities: list[Any] = [items for items, _ in script.buffers]
    sizes = [
        (buffer, items.place)
        for buffer, items in enumerate(capacities)
        if isinstance(items, FromCount)
    ]
    plain = Schedule(script.rank, 0, 0)
    plain.buffers = [Buffer(_value(items), _value(unit)) for items, unit in script.buffers]
    return SizedTable(
        lower(plain, fixed),
        _pairs(record.entries, 3),
        _pairs(list(record.conditions), 2),
        _pairs(cells, 2),
        _pairs(sizes, 2),
    )


def _fixed(number: int, step: Step, cells: list[tuple[int, int]]) -> Step:
    """Write a step for the count of the record; note which numbers follow."""
    if step.kind > Kind.COPY:
        raise Unfollowed(step.kind.name)
    block, source = step.block, step.source
    assert not isinstance(source, tuple) or isinstance(source, Block)
    for column, given in ((BLOCK, block), (SOURCE, source)):
        numbers: tuple[Any, ...] = given or ()
        for offset, value in enumerate(numbers):
            if isinstance(value, FromCount):
                cells.append((number * WIDTH + column + offset, value.place))
    others: list[Any] = [step.peer, step.slot, step.need, *step.after]
    if any(isinstance(one, FromCount) for one in others):
        raise Unfollowed("used in a step")
    return step._replace(block=_plain(block), source=_plain(source))


def _plain(block: Block | None) -> Block | None:
    if block is None:
        return None
    repeat: Any = block.repeat
    if isinstance(repeat, FromCount):
        raise Unfollowed("used as a number of runs")
    return Block(*map(_value, block))


def _value(number: Any) -> int:
    value: int = number.value if isinstance(number, FromCount) else number
    return value


def _pairs(given: Sequence[tuple[int, ...]], width: int) -> Numbers:
    return np.array(given, np.int64).reshape(-1, width)
