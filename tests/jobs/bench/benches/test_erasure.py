"""The benchmark of erasure codes, and the library that it is measured against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from closeranks.checkpoint.erasure.code import Code
from closeranks.checkpoint.erasure.matrix_product import Product
from closeranks.jobs.bench.benches import erasure
from closeranks.jobs.bench.command import bench
from tests.jobs.bench.keys import BASE

SMALL = ["erasure", "--data", "3", "--parity", "1,2", "--sizes", "1K", "--budget", "0.01"]


def test_rows_say_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    done = CliRunner().invoke(bench, [*SMALL, "--json", str(path)])
    assert done.exit_code == 0, done.output
    rows = json.loads(path.read_text())
    expected = ["encode", "rebuild 1", "encode", "rebuild 1", "rebuild 2"]
    assert [row["what"] for row in rows] == expected
    assert all(row["wrong"] == 0 and row["time_us_p50"] > 0 for row in rows)
    own = {"data", "parity", "block_bytes", "GBps", "isal_GBps", "memcpy_GBps"}
    assert all({*BASE, *own} <= set(row) for row in rows)
    assert all(row["iterations"] >= 11 and row["memcpy_GBps"] > 0 for row in rows)
    assert all(row["time_us_min"] <= row["time_us_p50"] <= row["time_us_max"] for row in rows)
    assert len(done.output.splitlines()) == 3 + len(rows)


def test_a_wrong_byte_is_counted_and_the_status_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Product.bind

    def wrong(self: Product, blocks: Any, results: Any, **options: Any) -> Any:
        multiply = bound(self, blocks, results, **options)

        def spoilt() -> None:
            multiply()
            results[0][7] ^= 1

        return spoilt

    monkeypatch.setattr(Product, "bind", wrong)
    monkeypatch.setattr(erasure, "library", lambda: None)
    done = CliRunner().invoke(bench, SMALL)
    assert done.exit_code == 1
    assert "pip install pyeclib" in done.output
    assert int(done.output.split()[-1]) > 0


@pytest.mark.skipif(erasure.library() is None, reason="ISA-L is not installed")
@pytest.mark.parametrize(("data", "parity"), [(1, 1), (4, 2), (8, 3), (10, 6), (30, 20)])
def test_isal_says_the_same(data: int, parity: int) -> None:
    rng = np.random.default_rng(data)
    blocks = rng.integers(0, 256, (data, 4097), dtype=np.uint8)
    code, theirs = Code(data, parity), np.empty((parity, 4097), np.uint8)
    erasure.isal_product(code.matrix, blocks, theirs)()
    assert np.array_equal(code.encode(blocks), theirs)
