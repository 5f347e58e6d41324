"""A session and rows as on 8 ranks of a lab, without ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from closeranks.jobs.bench.measuring.best_settings import Best, SettingsKey, SettingsResult
from closeranks.jobs.bench.measuring.session import BenchRequest, Session


def _session(**changes: Any) -> Session:
    request = replace(BenchRequest(("allreduce",), (65536, 1 << 20)), **changes)
    results = [
        SettingsResult(SettingsKey("allreduce", "auto", "float32", "sum", size, batched), us, label)
        for size, batched, us, label in [
            (65536, False, 4000.0, "coll=^han"),
            (65536, False, 3500.0, "ring"),
            (65536, True, 1.0, "ring"),
            (1 << 20, False, 90_000.0, "coll=^han"),
        ]
    ]
    return Session(
        request=request,
        comm=cast("Any", None),
        plain=cast("Any", None),
        library="Open MPI v5.0.11, package: built somewhere",
        per_node=(2, 2, 2, 2),
        best=Best(results),
    )


def _row(**changes: Any) -> dict[str, Any]:
    known = {
        "name": "allreduce",
        "algorithm": "auto",
        "ranks": 8,
        "nodes": 4,
        "dtype": "float32",
        "op": "sum",
        "size_bytes": 65536,
        "iterations": 110,
        "time_us_min": 3000.25,
        "time_us_p50": 3500.0,
        "time_us_mean": 3600.5,
        "time_us_p99": 4000.0,
        "time_us_max": 4100.0,
        "time_us_rank_mean": 3400.0,
        "algbw_GBps": 0.0187,
        "busbw_GBps": 0.0328,
        "wrong": 0,
        "batched": False,
        "asked_bytes": 65536,
    }
    return {**known, **changes}


@pytest.fixture
def session() -> Callable[..., Session]:
    """Make a session; keywords replace parts of its request."""
    return _session


@pytest.fixture
def row() -> Callable[..., dict[str, Any]]:
    """Make a row; keywords replace its values."""
    return _row
