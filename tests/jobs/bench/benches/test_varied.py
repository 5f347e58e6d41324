"""The calls of ``varied``: how they are drawn, and how rows are written, without ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest

from closeranks.collectives.arguments.call_key import size_class
from closeranks.errors import UsageError
from closeranks.jobs.bench.benches import varied
from closeranks.jobs.bench.benches.call_patterns import (
    CYCLE,
    FAMILIES,
    PATTERNS,
    CallPattern,
    VariedCall,
    chosen,
)
from closeranks.jobs.bench.command import bench
from closeranks.jobs.bench.measuring.session import Session

BY_NAME = {pattern.name: pattern for pattern in PATTERNS}


def draw(pattern: CallPattern, seed: int = 0, block: int = 1) -> list[VariedCall]:
    return pattern.draw(pattern, seed, block, pattern.calls)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_block_is_drawn_again_from_its_seed(name: str) -> None:
    pattern = BY_NAME[name]
    calls = draw(pattern)
    assert calls == draw(pattern), "on another rank, and for the other side"
    assert len(calls) == pattern.calls
    assert pattern.pool(pattern, 5) == pattern.pool(pattern, 5)
    if pattern.low < pattern.high:
        assert calls != draw(pattern, block=2), "anew in each block"
        assert calls != draw(pattern, seed=1)
        assert calls != draw(pattern, seed=-1), "any number is a seed"


@pytest.mark.parametrize("name", BY_NAME)
def test_calls_are_in_the_range_and_their_classes_are_settled_before(name: str) -> None:
    pattern = BY_NAME[name]
    calls = [call for block in range(8) for call in draw(pattern, block=block)]
    pool = pattern.pool(pattern, 0)
    for call in (*calls, *pool):
        assert pattern.low <= call.nbytes < max(pattern.high, pattern.low + 1), call
        assert call.nbytes % np.dtype(call.dtype).itemsize == 0, call
    assert {call.kind for call in calls} <= {call.kind for call in pool}


def test_sizes_are_spread_over_all_classes_and_both_types() -> None:
    for name in ("sizes-4K", "sizes-160K", "odd"):
        pattern = BY_NAME[name]
        calls = [call for block in range(8) for call in draw(pattern, block=block)]
        classes = Counter(size_class(call.nbytes) for call in calls)
        whole = [number for number in classes if 1 << number <= pattern.high]
        assert len(whole) == size_class(pattern.high) - 4
        assert min(classes[number] for number in whole) > 0.5 * len(calls) / len(classes)
    kinds = Counter((call.dtype, call.op) for call in draw(BY_NAME["sizes-160K"]))
    assert set(kinds) == {("float32", "SUM"), ("uint8", "MAX")}
    assert min(kinds.values()) > 50


def test_never_has_no_size_twice() -> None:
    pattern = BY_NAME["never"]
    assert pattern.most is not None
    blocks = [draw(pattern, block=block) for block in range(pattern.most // pattern.calls)]
    sizes = [call.nbytes for call in chain(*blocks, pattern.pool(pattern, 0))]
    assert len(set(sizes)) == len(sizes) > 4000
    every = pattern.draw(pattern, 0, 0, 10 * pattern.most)
    assert len(every) == pattern.most, "so many can be drawn in all"


def test_cyclic_comes_back_after_all_its_sizes() -> None:
    pattern = BY_NAME["cyclic"]
    turns = CYCLE // pattern.calls
    once = [call for block in range(turns) for call in draw(pattern, block=block)]
    assert len({call.nbytes for call in once}) == len(once) == CYCLE
    assert draw(pattern, block=turns) == draw(pattern, block=0)


def test_kinds_come_equally_often_in_another_order() -> None:
    pattern = BY_NAME["kinds"]
    calls = draw(pattern)
    counts = Counter(calls)
    assert len(counts) == 90
    assert set(counts.values()) == {2}
    assert set(Counter(draw(pattern, block=2))) == set(counts)
    assert {call.method for call in calls} == {"Allreduce", "Bcast", "Reduce"}
    assert len({call.nbytes for call in calls}) == 5
    assert len({call.dtype for call in calls}) == 6


def test_families_choose_patterns() -> None:
    assert [pattern.name for pattern in chosen(("step", "sizes"))] == [
        "sizes-4K", "sizes-160K", "sizes-3M", "step-64K", "step-1M",
    ]  # fmt: skip
    assert len({pattern.name for pattern in chosen(FAMILIES)}) == len(PATTERNS)


@pytest.mark.parametrize("name", ["sizes-4K", "odd", "fresh-4K"])
def test_buffers_lie_where_the_pattern_says(name: str) -> None:
    pattern = BY_NAME[name]
    calls = draw(pattern)
    buffers = varied._buffers(pattern, calls)
    for call, buffer in zip(calls, buffers, strict=True):
        assert (buffer.nbytes, buffer.dtype) == (call.nbytes, np.dtype(call.dtype))
        assert buffer.ctypes.data % 64 == pattern.offset
        buffer[:] = 1
    spans = sorted((one.ctypes.data, one.ctypes.data + one.nbytes) for one in buffers)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    if pattern.fresh:
        assert {one.ctypes.data % 4096 for one in buffers} == {0}


def test_typed_iterations_are_shared_out_among_blocks() -> None:
    sizes, never = BY_NAME["sizes-4K"], BY_NAME["never"]
    assert varied._calls_of_a_block(sizes, None) == sizes.calls
    assert varied._calls_of_a_block(sizes, 10 * varied.FEWEST - 1) == 10
    assert never.most is not None
    most = varied._calls_of_a_block(never, 10**6)
    assert (varied.FEWEST + 1) * most <= never.most < (varied.FEWEST + 1) * (most + 1)


def test_every_call_is_timed_by_its_return(monkeypatch: pytest.MonkeyPatch) -> None:
    stamps = iter([100, 103, 110, 111])
    monkeypatch.setattr(varied, "perf_counter_ns", lambda: next(stamps))
    made: list[tuple[str, int]] = []

    class Other:
        def scan(self, number: int) -> None:
            made.append(("scan", number))

    other: Any = Other()
    assert varied._times(other, [("scan", (number,)) for number in range(3)]) == [3, 7, 1]
    assert made == [("scan", 0), ("scan", 1), ("scan", 2)]


def test_a_line_has_a_cell_for_every_column(session: Callable[..., Session]) -> None:
    row: dict[str, Any] = {
        "pattern": "sizes-4K", "block": "settled", "calls": 9000, "us_per_call_p50": 2.5,
        "us_per_call_p99": 20.0, "us_per_call_mean": 3.0, "native_us_p50": 5.0, "speedup": 2.0,
        "speedup_mean": 1.5, "native_vs_native": 0.99, "wrong": 0,
    }  # fmt: skip
    lines = varied.heading(session(own={"seed": 7}))
    assert "--seed 7;" in lines[0]
    assert lines[-1].lstrip("#").split()[:3] == ["pattern", "block", "calls"]
    line = varied.as_line(row)
    assert line.split() == ["sizes-4K", "settled", "9000", "2.500", "20.00", "3.000", "5.000",
                            "2.00x", "1.50x", "0.99x", "0"]  # fmt: skip
    assert len(line) == len(lines[-1]) <= 100
    slow = varied.as_line(row | {"wrong": None, "speedup": 0.0234, "speedup_mean": 12.5})
    assert slow.split()[-4:] == ["0.023x", "12.50x", "0.99x", "-"]


def test_unknown_patterns_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown size; choose sizes, never, cyclic, kinds, comms"):
        bench.main(["varied", "--patterns", "never,size"], standalone_mode=False)
