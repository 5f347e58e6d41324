"""What every row of the bench has, whatever was measured."""

from __future__ import annotations

#: Keys that users' scripts rely on; null where they make no sense.
BASE = (
    "name", "algorithm", "ranks", "nodes", "dtype", "op", "size_bytes", "iterations",
    "time_us_min", "time_us_p50", "time_us_mean", "time_us_p99", "time_us_max",
    "algbw_GBps", "busbw_GBps", "wrong",
)  # fmt: skip
#: What every row of ``varied`` has, too.
VARIED_KEYS = (
    "pattern", "calls", "us_per_call_p50", "us_per_call_p99", "native_us_p50", "speedup",
    "native_vs_native", "block", "seed", "settled_calls", "low_bytes", "high_bytes",
)  # fmt: skip
