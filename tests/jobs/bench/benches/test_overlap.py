"""What ``overlap`` and ``init`` compute and print, without ranks."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from closeranks.jobs.bench.benches import init_time, overlap
from closeranks.jobs.bench.measuring.compute_work import Work, works


def test_the_share_that_is_hidden_is_that_of_omb() -> None:
    assert overlap.percent(10.0, 10.0, 4.0) == 100
    assert overlap.percent(11.0, 10.0, 4.0) == 75
    assert overlap.percent(14.0, 10.0, 4.0) == 0
    assert overlap.percent(20.0, 10.0, 4.0) == 0, "never below"


@pytest.mark.parametrize(("calls", "parts"), [(1, 1), (7, 3), (2, 16), (1000, 16)])
def test_parts_are_all_the_computation_and_are_timed(calls: int, parts: int) -> None:
    made: list[int] = []
    computing = overlap._Computing(Work("any", lambda: made.append(1)), calls)
    for sample in range(2):
        computing.begin()
        for k in range(parts):
            computing.part(k, parts)
        assert len(made) == (sample + 1) * calls
    assert len(computing.seconds) == 2
    assert min(computing.seconds) > 0


def test_the_kinds_of_work_differ_in_length() -> None:
    long, short = works()
    assert (long.name, short.name) == ("long", "short")
    assert long.call() is not None
    assert long.call().size > 500 >= short.call().size > 0  # type: ignore[attr-defined]


def test_a_line_has_a_cell_for_every_column() -> None:
    row: dict[str, Any] = {
        "size_bytes": 64, "started": "Iallreduce", "computed": "long", "iterations": 3,
        "pure_us": 4.0, "alone_us": 5.0, "compute_us": 6.0, "overall_us": 7.0,
        "overlap_percent": 75.0, "hidden_percent": 50.0, "wrong": 0,
    }  # fmt: skip
    line = overlap.as_line(row)
    assert line.split() == ["64", "Iallreduce", "long", "3", "4.000", "5.000", "6.000", "7.000",
                            "75.0", "50.0", "-", "-", "0"]  # fmt: skip
    bounded = overlap.as_line(row | {"bound_us": 10.0, "overall_over_bound": 0.7, "wrong": None})
    assert bounded.split()[-3:] == ["10.00", "0.70x", "-"]
    assert len(line) == len(bounded) == len(overlap.head())


def test_a_start_is_that_of_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _path, words: became.append(words))
    init_time.become_fresh(["bench", "init"])
    assert became == [
        [sys.executable, "-m", "closeranks.jobs.bench.benches.init_program", "bench", "init"]
    ]
    monkeypatch.setattr(init_time._Taken, "laps", None)
    init_time.take(dict.fromkeys(init_time.PARTS, 1.0), 0)
    init_time.become_fresh(["bench", "init"])
    assert len(became) == 1, "once is enough"


def test_every_part_of_a_start_is_printed() -> None:
    row = {part: 0.125 * k for k, part in enumerate(init_time.PARTS)} | {"seconds": 1.875}
    lines = init_time.as_lines(row | {"wrong": None})
    assert lines[0].endswith("MPI_Init before that: 0.000")
    assert [line.split()[0] for line in lines[1:]] == ["0.125", "0.250", "0.375", "0.500", "0.625",
                                                       "1.875"]  # fmt: skip
    assert lines[-1].endswith("not checked")
