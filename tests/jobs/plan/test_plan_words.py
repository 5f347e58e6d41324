"""The words of the verb ``plan``: what can be typed, and what cannot."""

from __future__ import annotations

import re
from typing import Any

import pytest

from closeranks.comms.topology.link import Link
from closeranks.errors import UsageError
from closeranks.jobs.plan import plan_words
from closeranks.jobs.plan.placement_rows import nbytes, seconds
from closeranks.partitioning import Volume


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("site=5.96M:100us", Link(100e-6, 5.96e6)),
        ("site=12.5GB/s:1.5ms:4", Link(1.5e-3, 12.5e9, 4)),
        ("site=1e9:0s", Link(0.0, 1e9)),
        ("site = 1GiB/s : 50ns", Link(50e-9, 2.0**30)),
    ],
)
def test_links(text: str, link: Link) -> None:
    level, found = plan_words.link("--link", text)
    assert level == "site"
    assert found.latency_s == pytest.approx(link.latency_s)
    assert (found.bytes_per_s, found.rails) == (link.bytes_per_s, link.rails)


def test_volumes() -> None:
    found = plan_words.volumes("--volume", ["dp=ring:4M", "tp=all:1.5K,pp=line:1000"])
    assert found == {
        "dp": Volume(4 << 20, "ring"), "tp": Volume(1536, "all"), "pp": Volume(1000, "line")
    }  # fmt: skip


def test_grids() -> None:
    assert plan_words.grid("--grid", "512x256X8") == (512, 256, 8)
    assert plan_words.one_or_each("--halo", "2", 3) == (2, 2, 2)
    assert plan_words.one_or_each("--halo", "0,1,2", 3) == (0, 1, 2)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: plan_words.whole_pairs("--axes", "a=2,a=3", "x"), "'a=2,a=3'"),
        (lambda: plan_words.whole_pairs("--axes", "a", "x"), "'a'"),
        (lambda: plan_words.whole_pairs("--axes", "a=0", "x"), "'0'"),
        (lambda: plan_words.whole_pairs("--axes", "a=-1", "x"), "'-1'"),
        (lambda: plan_words.link("--link", "site=5M"), "'site=5M'"),
        (lambda: plan_words.link("--link", "site=fast:1us"), "'fast'"),
        (lambda: plan_words.link("--link", "site=5M:soon"), "'soon'"),
        (lambda: plan_words.link("--link", "site=5M:1us:0"), "'0'"),
        (lambda: plan_words.link("--link", "site=5M:1us:1:1"), "site=5M"),
        (lambda: plan_words.volumes("--volume", ["dp=4M"]), "'dp=4M'"),
        (lambda: plan_words.volumes("--volume", ["dp=circle:4M"]), "'circle'"),
        (lambda: plan_words.volumes("--volume", ["dp=ring:x"]), "'x'"),
        (lambda: plan_words.volumes("--volume", ["dp=ring:1", "dp=ring:2"]), "dp twice"),
        (lambda: plan_words.grid("--grid", "512x"), "''"),
        (lambda: plan_words.grid("--grid", "512x0"), "'0'"),
        (lambda: plan_words.one_or_each("--halo", "1,2", 3), "2 numbers for 3 axes"),
    ],
)
def test_what_cannot_be_read_is_named(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        call()


def test_numbers_of_the_table() -> None:
    assert [seconds(s) for s in (0, 2e-9, 1.234e-3, 0.1294, 12.0)] == [
        "0 s", "2 ns", "1.23 ms", "129 ms", "12 s"
    ]  # fmt: skip
    assert [nbytes(n) for n in (0, 640, 64e3, 4e6)] == ["0 B", "640 B", "64 kB", "4 MB"]
