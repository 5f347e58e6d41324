"""What a communicator knows of sizes: bounded, counted once, nothing forgotten is called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from closeranks.collectives.fastpath.shortcut_record import MOST_SIZES, KnownSizes, row_of


@dataclass
class Kernel:
    """Stands for a `ShmCall`, which needs ranks."""

    key: tuple[object, ...]
    address: int
    calls: int = 0
    next: list[int] = field(default_factory=list)

    def followed_by(self, other: Kernel | None) -> None:
        self.next = [] if other is None else [*self.next, other.address]


def learn_near(known: KnownSizes, nbytes: int, kernel: Kernel) -> None:
    stand_in: Any = kernel
    known.learn_near(nbytes, stand_in)


def test_the_oldest_of_too_many_sizes_is_forgotten_and_its_calls_are_not() -> None:
    known, kernel = KnownSizes(), Kernel(("sum",), 4096)
    table = known.open()
    learn_near(known, 0, kernel)
    kernel.calls = 5
    known.learn(1)
    row_of(table, 1)[1] = 7
    for nbytes in range(2, MOST_SIZES + 2):
        known.learn(nbytes)
    assert not known.is_library(1)
    assert known.is_library(2)
    assert known.calls() == {"shared": 5, "native": 7}
    assert not (table[:, 0] == 0).any()
    assert not (table[:, 2] == kernel.address).any()


def test_kinds_of_one_size_follow_each_other_once_each() -> None:
    known, first, second, again = KnownSizes(), *(Kernel((n % 2,), n + 8) for n in range(3))
    table = known.open()
    for kernel in (first, second, again):
        learn_near(known, 64, kernel)
    assert row_of(table, 64).tolist() == [64, 0, first.address]
    assert (first.next, second.next) == ([second.address], [])
    assert not known.is_library(64)


def test_kinds_may_be_learned_again_in_another_order() -> None:
    known, first, second = KnownSizes(), Kernel((0,), 8), Kernel((1,), 16)
    known.open()
    for kernel in (first, second):
        learn_near(known, 64, kernel)
    for nbytes in range(100, MOST_SIZES + 100):
        known.learn(nbytes)
    for kernel in (second, first):
        learn_near(known, 64, kernel)
    assert (first.next, second.next) == ([], [first.address])  # no circle


def test_who_reads_a_table_that_was_shut_finds_nothing_until_it_is_open_again() -> None:
    known = KnownSizes()
    known.learn(64)
    table = known.open()
    row_of(table, 64)[1] = 3
    known.shut()
    known.learn(72)
    assert (table[:, 0] == -1).all()
    assert known.is_library(64)
    assert known.open() is table
    assert {64, 72} <= set(table[:, 0].tolist())
    assert known.calls()["native"] == 3
