"""The verb ``plan``: rows, tables, pictures, exit statuses; no ranks are started."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from closeranks.comms.topology.link import Link
from closeranks.comms.topology.topology import Topology
from closeranks.partitioning import Mesh, Volume

MACHINE = ("--machine", "site=2,node=2,rank=2")
LINKS = ("--link", "site=5.96M:100us", "--link", "node=23.4M:60us", "--link", "rank=5G:1us")
MESH = ("--axes", "a=2,b=2,c=2", "--volume", "a=ring:4M", "--volume", "b=ring:1M",
        "--volume", "c=line:64K")  # fmt: skip
SLOW = Topology.regular(site=2, node=2, rank=2).with_links(
    {"site": Link(100e-6, 5.96e6), "node": Link(60e-6, 23.4e6), "rank": Link(1e-6, 5e9)}
)


def plan(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the verb in a process of its own."""
    command = [sys.executable, "-m", "closeranks", "plan", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a run."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def test_rows_of_a_mesh(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    done = plan(*MACHINE, *LINKS, *MESH, "--top", "3", "--json", str(file))
    assert done.returncode == 0, done.stderr
    found = rows(file)
    assert [row["place"] for row in found] == [1, 2, 3, 0]
    volumes = {
        "a": Volume(4 << 20, "ring"), "b": Volume(1 << 20, "ring"), "c": Volume(64 << 10, "line")
    }  # fmt: skip
    for row in found:
        order = [int(rank) for rank in row["order"].split(",")]
        cost = Mesh({"a": 2, "b": 2, "c": 2}, SLOW, order).cost(volumes)
        assert row["kind"] == "axes"
        assert row["axes"] == "a=2,b=2,c=2"
        assert row["seconds"] == pytest.approx(cost.seconds)
        assert row["default_seconds"] == pytest.approx(found[-1]["seconds"])
        assert row["speedup"] == pytest.approx(row["default_seconds"] / row["seconds"])
        for level in SLOW.levels:
            assert row[f"bytes_{level}"] == cost.bytes_per_level[level]
            assert row[f"group_bytes_{level}"] == cost.group_bytes_per_level[level]
    assert found[-1]["order"] == "0,1,2,3,4,5,6,7"
    assert found[0]["exact"] is True
    assert found[0]["speedup"] > 21
    seconds = [row["seconds"] for row in found[:-1]]
    assert seconds == sorted(seconds)
    assert "assumed" not in done.stdout
    assert re.search(r"\n +1 +a=2,b=2,c=2 .*\(exact\)", done.stdout), done.stdout
    assert done.stdout.rstrip().splitlines()[-1].split()[0] == "default"


def test_a_grid_of_a_file(tmp_path: Path) -> None:
    dealt = Topology.from_groups(
        SLOW.levels, [np.arange(8) % 4 // 2, np.arange(8) % 4, np.arange(8)], dict(SLOW.links)
    )
    (tmp_path / "machine.json").write_text(dealt.to_json())
    file = tmp_path / "rows.json"
    done = plan("--topology", str(tmp_path / "machine.json"), "--grid", "256x32x256",
                "--json", str(file))  # fmt: skip
    assert done.returncode == 0, done.stderr
    best, default = rows(file)
    assert best["kind"] == "grid"
    assert best["place"] == 1
    assert set(best) == set(default)
    assert best["seconds"] <= default["seconds"]


def test_assumed_rates_are_told(tmp_path: Path) -> None:
    done = plan(*MACHINE, *LINKS[:2], "--axes", "a=8", "--volume", "a=all:1M")
    assert done.returncode == 0, done.stderr
    (line,) = (one for one in done.stdout.splitlines() if "assumed" in one)
    assert "node 5 us, 12.5 GB/s" in line
    assert "rank" in line
    assert "site" not in line


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    done = plan(*MACHINE, *LINKS, *MESH, "--draw", str(path))
    assert done.returncode == 0, done.stderr
    assert path.stat().st_size > 1000
    if suffix == ".svg":
        text = path.read_text()
        assert "colour: a" in text
        assert "chosen: " in text
        assert "default: 16.8 MB" in text


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (MACHINE, 2, "--axes"),
        (MESH, 2, "--machine"),
        ((*MACHINE, *MESH, "--grid", "4x4"), 2, "--grid"),
        ((*MACHINE, "--topology", "x.json", *MESH), 2, "--topology"),
        (("--topology", "gone.json", *MESH), 2, "gone.json"),
        (("--machine", "site=2,node=2", *MESH), 2, "--machine"),
        ((*MACHINE, "--link", "l3=5M:1us", *MESH), 2, "l3"),
        ((*MACHINE, "--axes", "a=3", "--volume", "a=ring:1"), 2, "8 ranks"),
        ((*MACHINE, "--axes", "a=8", "--volume", "b=ring:1"), 2, "'b'"),
        ((*MACHINE, "--grid", "8x8", "--volume", "a=ring:1"), 2, "--volume"),
        ((*MACHINE, *MESH, "--top", "0"), 2, "--top"),
        ((*MACHINE, "--axes", "a=8"), 2, "--volume"),
        ((*MACHINE, *MESH, "--halo", "2"), 2, "--halo"),
        ((*MACHINE, *MESH, "--draw", "plan.gif"), 2, "plan.gif"),
        ((*MACHINE, *MESH, "--json", "no/where.json"), 2, "no/where.json"),
    ],
)
def test_wrong_words_are_told_in_a_line(words: tuple[str, ...], status: int, said: str) -> None:
    done = plan(*words)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_link_of_unknown_rate_fails(tmp_path: Path) -> None:
    machine = SLOW.with_links({"node": Link(1e-6, None)})
    (tmp_path / "machine.json").write_text(machine.to_json())
    done = plan("--topology", str(tmp_path / "machine.json"), *MESH)
    assert done.returncode == 1
    assert "'node'" in done.stderr


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "full.svg").symlink_to("/dev/full")
    done = plan(*MACHINE, *MESH, "--draw", str(tmp_path / "full.svg"))
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
