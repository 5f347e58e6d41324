"""The cores that are really usable: mask and cgroup quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from closeranks.comms.discovery import node_hardware


def _tree(root: Path, files: dict[str, str], membership: str) -> tuple[Path, Path]:
    """Make a cgroup file system and a membership file."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "membership").write_text(membership)
    return root, root / "membership"


@pytest.mark.parametrize(
    ("files", "membership", "quota"),
    [
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"a/cpu.max": "150000 100000"}, "0::/a", 1.5),
        ({"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 1.5),
        ({"a/cpu.max": "400000 100000", "a/b/cpu.max": "50000 100000"}, "0::/a/b", 0.5),
        ({"cpu/j/cpu.cfs_quota_us": "-1", "cpu/j/cpu.cfs_period_us": "100000"}, "1:cpu:/j", None),
        (
            {"cpu/j/cpu.cfs_quota_us": "300000", "cpu/j/cpu.cfs_period_us": "100000"},
            "3:memory:/x\n1:cpu,cpuacct:/j\n0::/",
            3.0,
        ),
        ({"a/cpu.max": "nonsense"}, "0::/a", None),
        ({}, "0::/../..", None),
    ],
)
def test_the_tightest_quota_counts(
    tmp_path: Path, files: dict[str, str], membership: str, quota: float | None
) -> None:
    assert node_hardware.cgroup_quota(*_tree(tmp_path, files, membership)) == quota


def test_no_cgroups_at_all(tmp_path: Path) -> None:
    assert node_hardware.cgroup_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(("quota", "usable"), [(None, 4), (2.9, 2), (0.5, 1), (64.0, 4)])
def test_mask_and_quota_both_bound(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, usable: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4 + pid)))
    monkeypatch.setattr(node_hardware, "cgroup_quota", lambda: quota)
    assert node_hardware.usable_cores() == usable


@pytest.mark.parametrize(("siblings", "expected"), [(["0,2", "1,3"] * 2, 2), (list("0123"), 4)])
def test_threads_of_a_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: list[str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert node_hardware.whole_cores(tmp_path) == 4  # where nothing is told
    for processor, text in enumerate(siblings):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    assert node_hardware.whole_cores(tmp_path) == expected
