"""Which plans follow from their count, and that nothing a builder does escapes the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeranks.collectives.builders.catalogue import ALGORITHMS
from closeranks.collectives.plans.block import Block
from closeranks.collectives.plans.collective import VECTOR, Problem
from closeranks.collectives.plans.count_record import (
    LARGEST_COUNT,
    CountRecord,
    FromCount,
    Unfollowed,
    sized_table,
)
from closeranks.collectives.plans.plan_type import Algorithm, Plan
from closeranks.collectives.plans.schedule import Schedule
from closeranks.comms.topology.topology import Topology

SIZED = [
    (operation, algorithm)
    for operation, found in ALGORITHMS.items()
    if operation not in VECTOR and operation != "alltoallv"
    for algorithm in found
]
#: Their steps are kernels, or read constants.
ANEW = {"shared", "leader", "leader_doubling", "alltoall-bruck"}
TWO_NODES = Topology.regular(node=2, rank=3)
ONE_NODE = Topology.regular(node=1, rank=5)


def one_of(operation: str, algorithm: Algorithm, **known: Any) -> Problem:
    """A problem that the algorithm can serve."""
    problems = (Problem(operation, topology, **known) for topology in (TWO_NODES, ONE_NODE))
    return next(problem for problem in problems if algorithm.objection(problem) is None)


@pytest.mark.parametrize(("operation", "algorithm"), SIZED, ids=[f"{o}-{a.name}" for o, a in SIZED])
def test_the_catalogue_says_which_algorithms_follow_the_count(
    operation: str, algorithm: Algorithm
) -> None:
    own = {algorithm.name, f"{operation}-{algorithm.name}"}
    assert algorithm.follows is not bool(own & ANEW)
    problem = one_of(operation, algorithm)
    long = replace(problem, count=1000)
    for rank in range(problem.size):
        for count in (0, 1, 1000):
            plan = Plan(replace(problem, count=count), algorithm)
            if algorithm.follows:
                assert sized_table(plan, rank).fits(count)
            else:
                with pytest.raises(Unfollowed):
                    sized_table(plan, rank)
                with pytest.raises(Unfollowed):  # not for its word alone
                    sized_table(Plan(long, replace(algorithm, follows=True)), 0)


@pytest.mark.parametrize(("operation", "algorithm"), SIZED, ids=[f"{o}-{a.name}" for o, a in SIZED])
def test_no_objection_looks_at_the_count(operation: str, algorithm: Algorithm) -> None:
    record = CountRecord(7)
    for topology in (TWO_NODES, ONE_NODE, Topology.regular(node=1, rank=1)):
        algorithm.objection(Problem(operation, topology, count=record.count))  # type: ignore[arg-type]
    assert not record.conditions
    assert len(record.entries) == 1


def test_long_calls_that_are_cut_by_prices_are_not_followed() -> None:
    found = next(a for o, a in SIZED if (o, a.name) == ("allreduce", "hierarchical_ring"))
    with pytest.raises(Unfollowed, match="float"):
        sized_table(Plan(Problem("allreduce", TWO_NODES, count=1 << 20), found), 0)


def test_chains_share_steps_for_counts_of_as_many_segments() -> None:
    chain = next(a for o, a in SIZED if (o, a.name) == ("bcast", "chain"))
    table = sized_table(Plan(Problem("bcast", ONE_NODE, count=100_000), chain), 1)
    assert table.fits(100_001)
    assert not table.fits(1_000_000)
    assert not table.fits(0)


@given(
    count=st.integers(0, 10_000), other=st.integers(0, 10_000),
    words=st.lists(st.tuples(st.sampled_from("+-*/%r<=?"), st.integers(0, 9), st.integers(-9, 9))),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_a_record_computes_what_python_computes(
    count: int, other: int, words: list[tuple[str, int, int]]
) -> None:
    def run(first: Any) -> tuple[list[Any], list[bool]]:
        numbers, answers = [first, first + 1], []
        for word, place, constant in words:
            a, b = numbers[place % len(numbers)], numbers[(place + 1) % len(numbers)]
            divisor = abs(constant) + 1
            match word:
                case "+":
                    numbers.append(a + (b if constant > 0 else constant))
                case "-":
                    numbers.append(a - (b if constant > 0 else constant))
                case "r":
                    numbers.append(constant - a)
                case "*":
                    numbers.append(constant * a)
                case "/":
                    numbers.append(a // divisor)
                case "%":
                    numbers.append(a % divisor)
                case "<":
                    answers.append(bool(a < b))
                case "=":
                    answers.append(bool(a == constant))
                case _:
                    answers.append(bool(a))
        return numbers, answers

    try:
        record = CountRecord(count)
        numbers, answers = run(record.count)
    except Unfollowed:  # too large
        return
    plain, decided = run(count)
    assert [getattr(n, "value", n) if isinstance(n, FromCount) else n for n in numbers] == plain
    assert answers == decided
    assert all(n.largest >= abs(n.value) for n in numbers if isinstance(n, FromCount))
    values, conditions = values_of(record, other)
    others, decisions = run(other)
    if all(conditions):
        assert decisions == answers
        assert [values[n.place] if isinstance(n, FromCount) else n for n in numbers] == others


def values_of(record: CountRecord, count: int) -> tuple[list[int], list[bool]]:
    """Compute all numbers for another count, and tell which conditions hold."""

    def build(out: Schedule, problem: Problem) -> Any:
        yield

    plan = Plan(Problem("bcast", ONE_NODE, count=count), Algorithm("none", build))
    empty = sized_table(plan, 0)
    entries = np.array(record.entries, np.int64).reshape(-1, 3)
    pairs = np.array(list(record.conditions), np.int64).reshape(-1, 2)
    table = replace(empty, entries=entries, conditions=pairs)
    alone = [replace(table, conditions=pair[None]) for pair in pairs]
    return table.values(count), [one.fits(count) for one in alone]


@pytest.mark.parametrize(
    "use",
    [
        lambda n: {n: 1}, lambda n: hash(Block(0, 0, n)), float, int, lambda n: [1, 2][n],
        lambda n: np.array([n], np.int64), lambda n: n * n, lambda n: n // 0, lambda n: n / 2,
        lambda n: n.bit_length(), lambda n: n + 0.5, lambda n: 7 // n, lambda n: range(n),
        lambda n: np.arange(3)[n], lambda n: n << 1, lambda n: (1 << 30) * ((1 << 30) * n),
    ],
)  # fmt: skip
def test_what_a_record_cannot_follow_is_refused(use: Any) -> None:
    with pytest.raises((Unfollowed, TypeError)):
        use(CountRecord(5).count)


def test_multiples_of_a_number_are_divided_by_it() -> None:
    record = CountRecord(12)
    number: Any = record.count // 4
    assert 5 * number // number == 5
    assert number // number == 1
    assert list(record.conditions) == [(number.place, 1)]
    with pytest.raises(Unfollowed):
        (record.count - 12) // (record.count - 12)


def test_counts_beyond_the_largest_have_no_record() -> None:
    with pytest.raises(Unfollowed):
        CountRecord(LARGEST_COUNT + 1)
