"""What rows look like: our table, OMB's and nccl-tests' forms, charts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.point_to_point import as_table, bandwidths
from closeranks.jobs.bench.chart import check_drawable, draw
from closeranks.jobs.bench.formats import HEADER, NcclFormat, OsuFormat, ResultTable, clipped
from closeranks.jobs.bench.measuring.number_text import short
from closeranks.jobs.bench.measuring.session import Session

MakeSession = Callable[..., Session]
MakeRow = Callable[..., dict[str, Any]]

COMPARED = {
    "native_us_p50": 7000.0,
    "speedup": 2.0,
    "native_vs_native": 0.98,
    "best_us_p50": 3500.0,
    "best_settings": "coll=^han",
    "speedup_best": 1.0,
    "wire_percent": 81.25,
}


def test_nccl_header_is_that_of_nccl_tests() -> None:
    half = "     time   algbw   busbw #wrong"
    units = "     (us)  (GB/s)  (GB/s)       "
    assert list(HEADER) == [
        "#" + 62 * " " + "out-of-place                       in-place          ",
        "#       size         count      type   redop    root" + half + half,
        "#        (B)    (elements)                          " + units + units,
    ]


def test_nccl_row_stands_under_its_header(session: MakeSession, row: MakeRow) -> None:
    form = NcclFormat(session())
    (line,) = form.lines(row())
    assert line == (
        "       65536         16384     float     sum      -1   3600.5    0.02    0.03      0"
        "      N/A     N/A     N/A    N/A"
    )
    (line,) = form.lines(row(name="bcast", op="none", dtype="int32", wrong=None))
    assert line.split()[:5] == ["65536", "16384", "int32", "none", "0"]
    assert line.split()[8] == "N/A"
    assert form.end([row(), row(wrong=3)])[0] == "# Out of bounds values : 3 FAILED"
    assert form.end([row()])[:2] == [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 0.0328 ",
    ]
    assert [clipped(t, 7) for t in (13.957, 105.94, 12345.6)] == ["  13.96", "  105.9", "  12346"]


def test_osu_columns(session: MakeSession, row: MakeRow) -> None:
    form = OsuFormat(session())
    head = form.title("allreduce", "auto")[-1]
    (line,) = form.lines(row())
    assert head.startswith("# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)")
    assert line.split() == ["65536", "3400.00", "3000.25", "4100.00", "110", "Pass"]
    assert len(head) == len(line)
    assert form.lines(row(wrong=1))[0].endswith("Fail")
    unchecked = OsuFormat(session(check=False))
    unchecked.title("pingpong", "native")
    assert unchecked.lines(row())[0].split() == ["65536", "3600.50"]


def test_table_shows_what_was_compared(session: MakeSession, row: MakeRow) -> None:
    form = ResultTable(session(native=True, best=True))
    assert "# 8 ranks, 4 nodes x 2, NumPy buffers, float32, sum" in form.begin()
    form.title("allreduce", "auto")
    head, line = form.lines(row(**COMPARED))
    assert head.startswith("#")
    assert "native us  speedup    A/A" in head
    cells = line.split()
    assert cells[0] == "65536"
    assert cells[-8:] == ["0", "81.2", "7000", "2.00x", "0.98x", "3500", "1.00x", "coll=^han"]
    assert len(form.lines(row(**COMPARED))) == 1, "column names only once"
    assert form.end([row(), row(wrong=2)]) == ["#", "# 2 rows, 2 wrong elements"]
    assert form.end([row(wrong=None)])[-1] == "# 1 rows, not checked"


def test_table_without_comparison_is_narrow(session: MakeSession, row: MakeRow) -> None:
    head, line = ResultTable(session()).lines(row())
    assert "native" not in head
    assert "wire" not in head
    assert line.split() == [
        "65536", "110", "3000", "3500", "3600", "4000", "4100", "0.019", "0.033", "0",
    ]  # fmt: skip


def test_short_numbers() -> None:
    shown = [short(value) for value in (0.0, 1.2346, 12.346, 123.46, 1e6)]
    assert shown == ["0.000", "1.235", "12.35", "123.5", "1000000"]


def matrix_rows(row: MakeRow) -> list[dict[str, object]]:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    return [
        row(name="matrix", ranks=3, source=a, target=b, algbw_GBps=a + b / 10) for a, b in pairs
    ]


def test_matrix_is_a_square(row: MakeRow) -> None:
    square = bandwidths(matrix_rows(row))
    assert square.shape == (3, 3)
    assert square[2, 1] == pytest.approx(2.1)
    head, *lines = as_table(matrix_rows(row))
    assert head.startswith("#")
    assert lines[2].split() == ["#", "2", "2.000", "2.100", "-"]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_charts_are_drawn(tmp_path: Path, row: MakeRow, suffix: str) -> None:
    rows = [row(size_bytes=65536 << i, **COMPARED) for i in range(4)]
    rows += [
        row(name="bcast"),
        row(name="barrier", size_bytes=0, algbw_GBps=0.0, busbw_GBps=0.0),
        *matrix_rows(row),
        *(
            row(
                name="varied",
                pattern=f"sizes-{at}",
                block=block,
                us_per_call_p50=3.0 + at,
                size_bytes=None,
                **COMPARED,
            )
            for at in range(3)
            for block in ("first", "settled")
        ),
    ]
    path = tmp_path / f"chart{suffix}"
    draw(path, rows, "somewhere")
    assert path.stat().st_size > 5000


def test_sparse_sums_are_drawn_over_their_density(tmp_path: Path, row: MakeRow) -> None:
    path, known = tmp_path / "sparse.svg", {"name": "sparse", "dense_us": 4e5, "speedup": 1.0}
    sizes, shares = (1 << 20, 1 << 24), (0.3, 0.0, 0.001)
    rows = [row(**known, density=one, size_bytes=size) for size in sizes for one in shares]
    draw(path, [one | {"wire_us": 3e5} for one in rows], "somewhere")
    words, wire = path.read_text(), "<!-- whole vector at the wire's rate -->"
    for text in ("0.1%", "100%", "auto, 1M", "auto, 16M", "Allreduce of the whole vector"):
        assert f"<!-- {text} -->" in words, text
    assert wire in words
    draw(path, [one | {"wire_us": None} for one in rows], "where there is no wire")
    assert wire not in path.read_text()


def test_charts_that_cannot_be_drawn_are_refused_early() -> None:
    with pytest.raises(UsageError, match=r"chart\.xyz has no known suffix; end it with \.svg"):
        check_drawable(Path("chart.xyz"))
