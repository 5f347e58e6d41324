"""Memory of results is used again when, and only when, nobody has it any more."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from closeranks.comms.result_memory import LEAST, MOST, ResultMemory

SHAPE, KIND = (512, 512), np.dtype(np.float64)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_is_taken_again_when_it_was_dropped() -> None:
    results = ResultMemory()
    first = results.array(SHAPE, KIND)
    assert first.shape == SHAPE
    assert first.flags.c_contiguous
    where = address(first)
    del first
    again = results.array((1024, 1024), np.dtype(np.float16))
    assert address(again) == where


HOLD: dict[str, Any] = {
    "array": lambda made: made,
    "view": lambda made: made[::2],
    "reshaped": lambda made: made.reshape(-1).view(np.int64),
    "memoryview": memoryview,
    "dlpack": np.from_dlpack,
    "part": lambda made: made[3, 5:7],
}


@pytest.mark.parametrize("keep", HOLD)
def test_memory_in_use_is_left_alone(keep: str) -> None:
    results = ResultMemory()
    made = results.array(SHAPE, KIND)
    made[...] = 7.0
    held = HOLD[keep](made)
    del made
    for _ in range(5):
        results.array(SHAPE, KIND)[...] = 0.0
    assert (np.asarray(held).view(np.float64) == 7.0).all()


def test_four_results_are_kept_and_no_more() -> None:
    results = ResultMemory()
    held = [results.array(SHAPE, KIND) for _ in range(6)]
    places = [address(one) for one in held]
    assert len(set(places)) == 6
    held.clear()
    taken = [results.array(SHAPE, KIND) for _ in range(4)]
    assert {address(one) for one in taken} == set(places[:4])


def test_a_loop_over_two_lengths_keeps_both() -> None:
    results = ResultMemory()
    seen: set[int] = set()
    part = results.array((LEAST // 8,), KIND)
    for turn in range(10):
        part = results.array((LEAST // 8 * (1 + turn % 2),), KIND)
        seen.add(address(part))
    assert len(seen) <= 4


@pytest.mark.parametrize("nbytes", [0, 8, LEAST - 8, MOST + 8])
def test_short_and_long_results_are_not_kept(nbytes: int) -> None:
    results = ResultMemory()
    made = results.array((nbytes // 8,), KIND)
    assert made.base is None
    assert results._kept == []


def test_threads_get_memory_of_their_own() -> None:
    results = ResultMemory()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            made = results.array(SHAPE, KIND)
            made[:] = number
            if (made != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []
