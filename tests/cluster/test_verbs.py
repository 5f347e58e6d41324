"""The doctor, the topology verb, and errors of verbs that run on many ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.child import closeranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


def test_the_doctor_finds_nothing_that_fails(tmp_path: Path) -> None:
    done = closeranks("doctor", "--json", str(tmp_path / "findings.json"))
    assert done.returncode == 0, done.stdout
    findings = {row["check"]: row for row in json.loads((tmp_path / "findings.json").read_text())}
    assert findings["two ranks"]["state"] == "ok"
    assert {row["state"] for row in findings.values()} <= {"ok", "warn"}
    for row in findings.values():
        assert row["check"] in done.stdout
        assert row["remedy"] or row["state"] == "ok"


def test_the_topology_of_a_lab_is_the_labs(tmp_path: Path) -> None:
    lab = ("lab", "--per-node", "2,2,1", "--sites", "2", "--no-check")
    path = tmp_path / "topology.json"
    done = closeranks(*lab, "--", "closeranks", "topology", "--json", str(path), cwd=tmp_path)
    if "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5 ranks (2 sites, 3 nodes)")
    from closeranks.comms.topology.topology import Topology

    found = Topology.from_json(path.read_text())
    assert found.levels == ("site", "node", "rank")
    assert found.groups.tolist() == [[0, 0, 0, 0, 1], [0, 0, 1, 1, 2], [0, 1, 2, 3, 4]]


def test_a_usage_error_on_all_ranks_is_said_once() -> None:
    words = ("topology", "--json", "/no/such/folder/x.json")
    done = closeranks("run", "-n", "3", "--", "closeranks", *words)
    assert done.returncode == 2
    assert done.stderr.count("closeranks: error:") == 1
