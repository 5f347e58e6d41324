"""What a communicator knows of size classes: bounded, counted once, read by machine code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from closeranks.collectives.arguments.call_key import CLASSES, size_class
from closeranks.collectives.fastpath.shortcut_layout import class_of
from closeranks.collectives.fastpath.shortcut_record import MOST_KINDS, KnownSizes
from closeranks.collectives.selection.rules import read_rules


@dataclass
class Kernel:
    """Stands for a `ShmCall`, which needs ranks."""

    kind: tuple[object, ...]
    address: int
    calls: int = 0
    next: list[int] = field(default_factory=list)

    def followed_by(self, other: Kernel | None) -> None:
        self.next = [] if other is None else [*self.next, other.address]


def learn_near(known: KnownSizes, size_class: int, kernel: Kernel) -> None:
    stand_in: Any = kernel
    known.learn_near(size_class, stand_in)


def test_machine_code_counts_bits_as_python_does() -> None:
    for bits in range(63):
        for nbytes in {1 << bits, (1 << bits) - 1, (1 << bits) + 1}:
            assert class_of(nbytes) == size_class(nbytes) < CLASSES


def test_calls_are_counted_also_after_the_table_was_shut() -> None:
    known, kernel = KnownSizes(), Kernel(("sum",), 4096)
    table = known.open()
    learn_near(known, 0, kernel)
    kernel.calls = 5
    known.learn(1)
    table[1, 1] = 7
    assert known.calls() == {"shared": 5, "native": 7}
    known.shut()
    assert known.calls() == {"shared": 5, "native": 7}


def test_kinds_of_one_class_follow_each_other_once_each() -> None:
    known, first, second, again = KnownSizes(), *(Kernel((n % 2,), n + 8) for n in range(3))
    table = known.open()
    for kernel in (first, second, again):
        learn_near(known, 7, kernel)
    assert table[7].tolist()[:3] == [1, 0, first.address]
    assert (first.next, second.next) == ([second.address], [])
    assert not known.is_library(7)
    kinds: list[Any] = [(0,), (1,), (2,)]
    assert [known.runs(7, kind) for kind in kinds] == [True, True, False]
    assert not known.runs(8, kinds[0])


def test_no_class_has_more_kinds_than_machine_code_looks_through() -> None:
    known, kernels = KnownSizes(), [Kernel((n,), n + 8) for n in range(MOST_KINDS + 1)]
    for kernel in kernels:
        learn_near(known, 7, kernel)
    other: Any = ("another",)
    assert known.runs(7, other), "there is nothing to learn of it any more"
    assert kernels[-2].next == []


def test_who_reads_a_table_that_was_shut_finds_nothing_until_it_is_open_again() -> None:
    known = KnownSizes()
    known.learn(7)
    table = known.open()
    table[7, 1] = 3
    known.shut()
    known.learn(8)
    assert not table.any()
    assert known.is_library(7)
    assert known.open() is table
    assert table[:, 0].nonzero()[0].tolist() == [7, 8]
    assert known.calls()["native"] == 3


@pytest.mark.parametrize(
    ("limit", "split"), [(511, False), (512, True), (1000, True), (1022, True), (1023, False)]
)
def test_a_rule_may_divide_a_class(limit: int, split: bool) -> None:
    rules = read_rules(
        {"allreduce": [{"up_to_bytes": limit, "algorithm": "native"}, {"algorithm": "ring"}]}
    )
    assert rules.divides("allreduce", size_class(512)) == split
    assert not rules.divides("bcast", size_class(512))
    names = {rules.name("allreduce", nbytes) for nbytes in range(512, 1024)}
    assert (len(names) > 1) == split
