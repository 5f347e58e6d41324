"""Sizes, schedules, statistics, names: no ranks, no clock."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeranks.errors import UsageError
from closeranks.jobs.bench.benches.point_to_point import window
from closeranks.jobs.bench.benches.registration import benchmarks, collectives_among, expand
from closeranks.jobs.bench.measuring import network
from closeranks.jobs.bench.measuring.collectives import COLLECTIVES
from closeranks.jobs.bench.measuring.network import Wire, wire
from closeranks.jobs.bench.measuring.number_text import parse_bytes, parse_sizes, show_bytes
from closeranks.jobs.bench.measuring.timing import BATCH, BLOCKS, Effort, Timing, bandwidth

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8:64", (8, 16, 32, 64)),
        ("8:64M:256", (8, 2048, 524288)),
        ("1K,64K,1000", (1000, 1024, 65536)),
        ("64K:16M:16", (65536, MIB, 16 * MIB)),
        ("4MiB", (4 * MIB,)),
        ("2k,1k:2k", (1024, 2048)),
    ],
)
def test_sizes_as_people_write_them(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "8:", ":8", "64K:8", "8:64:1", "8:64:x", "8:16:2:2", "0", "-8", "8T", "1e6"]
)
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"bench --sizes.*write 8:64M"):
        parse_sizes(text)


@given(st.integers(1, 1 << 40))
def test_shown_sizes_can_be_typed(nbytes: int) -> None:
    assert parse_bytes(show_bytes(nbytes)) == nbytes


def test_names() -> None:
    assert len(COLLECTIVES) == 16
    points = ["pingpong", "bandwidth", "bibandwidth", "pairs", "matrix"]
    assert expand(["all"]) == [*COLLECTIVES, *points] == list(benchmarks())[: 16 + 5]
    assert expand(["init", "overlap"]) == ["init", "overlap"]
    assert collectives_among(["overlap", "init", "bcast"]) == ["bcast"]
    assert expand(["scan", "bcast", "scan"]) == ["scan", "bcast"]
    assert collectives_among(["matrix", "bcast"]) == ["bcast"]
    assert not set(points) & set(COLLECTIVES)
    for names in (["allredcue"], []):
        with pytest.raises(
            UsageError,
            match=r"choose from: .*all.*pack overlap init .*varied .*halo coded sparse route .*all",
        ):
            expand(names)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("allreduce", 1.5), ("allgather", 0.75), ("alltoallv", 0.75), ("bcast", 1), ("reduce", 1)],
)
def test_bus_factors_are_those_of_nccl_tests(name: str, factor: float) -> None:
    assert COLLECTIVES[name].factor(4) == factor
    columns = bandwidth(MIB, 1000.0, COLLECTIVES[name].factor(4))
    assert columns["algbw_GBps"] == pytest.approx(1.048576)
    assert columns["busbw_GBps"] == pytest.approx(1.048576 * factor)


def test_times_of_a_row() -> None:
    timing = Timing(np.linspace(1e-6, 100e-6, 100), 40e-6, 100, False)
    columns = timing.columns()
    assert columns["time_us_min"] == pytest.approx(1)
    assert columns["time_us_p50"] == pytest.approx(50.5)
    assert columns["time_us_mean"] == pytest.approx(50.5)
    assert columns["time_us_p99"] == pytest.approx(99.01)
    assert columns["time_us_max"] == pytest.approx(100)
    assert columns["time_us_rank_mean"] == pytest.approx(40)
    assert timing.scaled(0.5).p50_us == pytest.approx(25.25)


def test_short_calls_are_batched_long_ones_are_not() -> None:
    effort = Effort()
    short = effort.schedule([5e-6, 1e-6, 1e-6], 8)
    assert short.batched
    assert short.calls == BATCH
    assert short.blocks >= BLOCKS
    assert not effort.schedule([21e-6], 8).batched
    mixed = effort.schedule([30e-6, 10e-6, 10e-6], 8)
    assert mixed.batched, "the fastest side decides for all"


def test_alternating_sides_get_eleven_blocks_even_if_slow() -> None:
    slow = Effort(budget_s=3).schedule([1.4, 3.5, 3.5], 16 * MIB)
    assert (slow.blocks, slow.calls, slow.batched) == (11, 1, False)
    assert Effort().schedule([1.4], 16 * MIB).calls == 3
    cheap = Effort(budget_s=3).schedule([100e-6] * 3, 4096)
    assert cheap.blocks * cheap.calls * 100e-6 == pytest.approx(1.0, rel=0.05), "a second a side"
    assert cheap.blocks % 3 == 0, "every side as often first"


def test_iterations_given_are_kept() -> None:
    assert Effort(iterations=7).schedule([1.0], MIB).calls == 7
    several = Effort(iterations=33).schedule([1.0, 1.0, 1.0], MIB)
    assert several.blocks * several.calls == 33
    assert Effort(iterations=20_000).schedule([1e-6], 8).blocks == 20
    assert Effort(warmup=3).warmups(10.0, 8) == 3
    assert Effort().warmups(1e-6, 8) == 100
    assert Effort().warmups(1e-6, MIB) == 10
    assert Effort().warmups(5.0, MIB) == 0


def test_windows_shrink_with_the_message() -> None:
    assert [window(n) for n in (1, 128 * 1024, MIB, 64 * MIB)] == [64, 64, 8, 1]


def test_wire_of_a_lab() -> None:
    lab = {"nodes": 4, "rate_bytes_per_s": 25e6, "burst_bytes": 131072, "nics": 1, "sites": 1}
    found = wire({"CLOSERANKS_LAB": json.dumps(lab)})
    assert found == Wire(4, 25e6, 131072)
    least = (1.5 * MIB - 131072) / (0.957 * 25e6)
    assert found.percent(MIB, least) == pytest.approx(100)
    assert found.percent(MIB, 2 * least) == pytest.approx(50)
    assert found.percent(64 * 1024, 1e-3) is None
    assert wire({}) is None
    assert wire({"CLOSERANKS_LAB": json.dumps(lab | {"rate_bytes_per_s": None})}) is None
    assert wire({"CLOSERANKS_LAB": json.dumps(lab | {"sites": 2})}) is None
    assert wire({"CLOSERANKS_LAB": json.dumps(lab | {"nics": 2})}) == Wire(4, 50e6, 262144)


def test_counters_leave_the_loopback_out() -> None:
    table = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
        "    lo: 1 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0\n"
        "  eth0: 10 1 0 0 0 0 0 0 1234 5 0 0 0 0 0 0\n"
        "nic1:20 1 0 0 0 0 0 0 66 5 0 0 0 0 0 0\n"
    )
    assert network.sent_bytes(table) == {"eth0": 1234, "nic1": 66}
    assert all(sent >= 0 for sent in network.node_sent_bytes().values())


def test_nics_are_even_if_they_send_alike() -> None:
    assert network.evenness({"nic0": 90, "nic1": 100, "eth0": 0}) == 90
    assert network.evenness({"nic0": 5}) == network.evenness({}) == 100
