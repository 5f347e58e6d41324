"""The verb ``stragglers``: three kinds of trace, rows, pictures, exit statuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from closeranks.collectives.coded import (
    GilbertElliott,
    PartialRepetition,
    Repetition,
    Trace,
    simulate,
)
from closeranks.collectives.coded.stragglers.trace_file import TraceWriter
from closeranks.errors import UsageError
from closeranks.jobs.stragglers.forecast import forecast, named
from closeranks.jobs.stragglers.slowness_picture import _coarse, draw_forecast

OVERHEAD_S = 0.006
SHARE_S = 0.08


def stragglers(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the verb in a process of its own."""
    command = [sys.executable, "-m", "closeranks", "stragglers", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def recorded(path: Path, factors: NDArray[np.float64], **options: Any) -> Path:
    """Write what a run without a code would have recorded."""
    compute = SHARE_S * factors
    steps = np.repeat(compute.max(axis=1)[:, None] + OVERHEAD_S, factors.shape[1], axis=1)
    TraceWriter(path, factors.shape[1], **{"micro": 8, **options}).append(compute, steps)
    return path


def calm() -> NDArray[np.float64]:
    return GilbertElliott(0, 0, 1, 1, jitter=0.03).factors(120, 8)


def chronic() -> NDArray[np.float64]:
    factors = calm()
    factors[:, 5] *= 2
    return factors


def bursty(seed: int = 3) -> NDArray[np.float64]:
    return GilbertElliott(0.1, 0.3, 8, seed, jitter=0.03).factors(40, 8)


def test_a_calm_trace(tmp_path: Path) -> None:
    found = forecast(Trace(recorded(tmp_path / "t.h5", calm())))
    assert found.advice.startswith("Calm: no scheme would surely save 3% of a round")
    (chosen,) = (row for row in found.rows if row["chosen"])
    assert chosen["scheme"] == "Uncoded(8)"
    assert chosen["seconds"] == pytest.approx(SHARE_S * 1.027 + OVERHEAD_S, rel=0.01)
    assert (found.ranks.chronic, found.ranks.bursty, found.bursts) == ((), (), {})


def test_a_rank_that_is_slow_for_good(tmp_path: Path) -> None:
    found = forecast(Trace(recorded(tmp_path / "t.h5", chronic())))
    assert re.fullmatch(
        r"Chronic: rank 5 is slow for good \(2x\); repair that, or give less work by"
        r" UnequalShares\(8, speeds\) with 0\.5 there and 1 elsewhere, 1\.[78]x as fast\.",
        found.advice,
    )
    assert found.ranks.chronic == (5,)


def test_ranks_that_are_slow_at_times(tmp_path: Path) -> None:
    found = forecast(Trace(recorded(tmp_path / "t.h5", bursty())))
    assert found.advice.startswith("Bursty: ranks 3, 0, 6, 2 and 4 more are slow at times; Partial")
    assert sum(length * count for length, count in found.bursts.items()) == (bursty() > 2).sum()
    assert (found.bursty.B, found.bursty.W) == (2, 3)
    both = bursty()
    both[:, 3] *= 2
    said = forecast(Trace(recorded(tmp_path / "u.h5", both))).advice
    assert said.endswith("but rank 3 is slow for good: repair that, or give less work, first.")


@pytest.mark.parametrize("seed", range(3))
def test_schemes_are_predicted_from_a_run_without_a_code(seed: int, tmp_path: Path) -> None:
    """What a trace tells is what the schedule behind it gives."""
    factors = bursty(seed)
    rows = {
        row["scheme"]: row for row in forecast(Trace(recorded(tmp_path / "t.h5", factors))).rows
    }
    for code in (Repetition(8, 1), PartialRepetition(8, 3)):
        truth = simulate(code, factors, rounds=40, compute_s=8 * SHARE_S).seconds / 40
        row = rows[f"{type(code).__name__}({code.n}, {code.s})"]
        assert row["seconds"] == pytest.approx(truth + OVERHEAD_S, rel=0.02)
        assert row["low_s"] < 0.91 * row["seconds"] < 1.09 * row["seconds"] < row["high_s"]
        assert row["speedup"] == pytest.approx(rows["Uncoded(8)"]["seconds"] / row["seconds"])


def test_the_verb_writes_rows_and_a_picture(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t.h5", chronic(), hosts=[f"node{rank // 4}" for rank in range(8)])
    done = stragglers(
        str(trace), "--json", str(tmp_path / "rows.json"), "--draw", str(tmp_path / "t.svg")
    )
    assert done.returncode == 0, done.stderr
    assert "120 rounds of 8 ranks on 2 hosts" in done.stdout
    assert re.search(r"slow for good: rank 5 \(node1\) 2\.\d\dx", done.stdout)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert done.stdout.rstrip().endswith(rows[0]["advice"])
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    for row in rows:
        assert {"scheme", "seconds", "speedup", "advice", "low_s", "high_s"} <= set(row)
        assert row["chronic"] == "5"
        assert not any(isinstance(value, (list, dict)) for value in row.values())
        assert row["scheme"] in done.stdout
    assert sum(row["chosen"] for row in rows) == 1
    assert "<svg" in (tmp_path / "t.svg").read_text()


def test_a_large_trace_is_drawn_coarsely(tmp_path: Path) -> None:
    factors = GilbertElliott(0.01, 0.3, 4, 1).factors(3000, 8)
    found = forecast(Trace(recorded(tmp_path / "t.h5", factors)))
    draw_forecast(found, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes()[:4] == b"\x89PNG"
    cells = _coarse(factors, 800)
    assert cells.shape == (800, 8)
    assert (cells.max(axis=0) == factors.max(axis=0)).all()
    assert (_coarse(factors[:5], 800) == factors[:5]).all()


def test_bad_data_end_with_1(tmp_path: Path) -> None:
    short = recorded(tmp_path / "short.h5", calm()[:7])
    with pytest.raises(UsageError, match=r"short\.h5: it is short: 7 rounds, at least 8"):
        forecast(Trace(short))
    newer = recorded(tmp_path / "newer.h5", calm())
    with h5py.File(newer, "r+") as file:
        file.attrs["closeranks_trace"] = 9
    (tmp_path / "text.h5").write_text("1 2 3")
    for name, said in (("short", "it is short"), ("newer", "format 9"), ("text", "cannot be read")):
        done = stragglers(str(tmp_path / f"{name}.h5"))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("closeranks: error: trace: ")
        assert f"{name}.h5" in done.stderr
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["--rate"], ["--draw", "x.txt"], ["--json", "/no/such/x.json"]])
def test_bad_flags_end_with_2(words: list[str], tmp_path: Path) -> None:
    done = stragglers(str(recorded(tmp_path / "t.h5", calm())), *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_ranks_are_named_in_short() -> None:
    assert named((3,)) == "rank 3 is"
    assert named((3, 1)) == "ranks 3, 1 are"
    assert named((9, 1, 2, 3, 4, 5)) == "ranks 9, 1, 2, 3 and 2 more are"


def test_ranks_that_differ_by_chance_are_not_slow_at_times(tmp_path: Path) -> None:
    factors = np.random.default_rng(0).uniform(0.9, 1.1, (64, 4))
    found = forecast(Trace(recorded(tmp_path / "t.h5", factors, micro=100)))
    assert found.ranks.bursty == ()
    assert re.fullmatch(
        r"Uneven: no rank is slow at times, but they differ;"
        r" PartialRepetition\(4, 3, \d+\) would be 1\.0\dx as fast\.",
        found.advice,
    )


def test_a_rank_without_work(tmp_path: Path) -> None:
    found = forecast(Trace(recorded(tmp_path / "t.h5", np.tile([0.0, 1, 1], (64, 1)))))
    assert found.advice.startswith("Idle: rank 0 is without work in most rounds; record a run")
    assert [row["scheme"] for row in found.rows if row["chosen"]] == ["Uncoded(3)"]


@pytest.mark.parametrize("share_s", [1e30, 1e-45])
def test_a_trace_of_odd_seconds(share_s: float, tmp_path: Path) -> None:
    TraceWriter(tmp_path / "t.h5", 8).append(np.minimum(share_s * bursty(), 1e30))
    rows = forecast(Trace(tmp_path / "t.h5")).rows
    assert all(np.isfinite(row["speedup"]) and row["seconds"] > 0 for row in rows)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t.h5", calm())
    command = [sys.executable, "-m", "closeranks", "stragglers", str(trace)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("closeranks: error: stragglers: cannot write to standard output")
    assert done.stderr.count("\n") == 1
