"""What the doctor makes of what it finds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from closeranks.jobs import doctor
from closeranks.jobs.doctor import Finding

WELL = Finding("a", "ok", "fine")
SLOW = Finding("b", "warn", "slow [not markup]", "do this")
BROKEN = Finding("c", "fail", "gone", "get it")


@pytest.mark.parametrize(
    ("findings", "status"), [([WELL], 0), ([WELL, SLOW], 0), ([WELL, SLOW, BROKEN], 1)]
)
def test_only_a_failure_fails(
    findings: list[Finding], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "look_at_software", lambda: findings)
    monkeypatch.setattr(doctor, "look_at_machine", list)
    path = tmp_path / "x.json"
    done = CliRunner().invoke(doctor.doctor, ["--json", str(path)])
    assert done.exit_code == status
    assert [row["state"] for row in json.loads(path.read_text())] == [f.state for f in findings]
    for finding in findings:
        assert finding.found in done.output


def test_a_missing_package_fails_and_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "h5py" else "1")
    (found,) = (f for f in doctor.look_at_software() if f.check == "packages")
    assert (found.state, found.found) == ("fail", "missing: h5py")
    assert "pip install h5py" in found.remedy


@pytest.mark.parametrize(
    ("check", "needed"),
    [
        ("_packages", True), ("_extras", False), ("_hdf5", True), ("_numba", True),
        ("_remembered", False), ("_gpu", False), ("_cores", True), ("_shared_memory", True),
        ("_mpi", True), ("_fabric", False), ("_slurm", False), ("_lab", False),
    ],
)  # fmt: skip
def test_a_folder_that_may_not_be_read_is_a_finding(
    check: str, needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Finding:
        raise PermissionError(13, "Permission denied", "/closed")

    for name, one in list(vars(doctor).items()):
        if getattr(one, "__annotations__", {}).get("return") == "Finding":
            monkeypatch.setattr(doctor, name, lambda *_: WELL)
    monkeypatch.setattr(doctor, "_mpi", list)
    monkeypatch.setattr(doctor, check, refuse)
    everything = [*doctor.look_at_software(), *doctor.look_at_machine()]
    (found,) = (one for one in everything if one is not WELL)
    assert found.state == ("fail" if needed else "warn")
    assert "/closed" in found.found
    assert found.remedy


def test_node_memory_that_others_have_a_hand_in_fails(tmp_path: Path) -> None:
    assert doctor._shared_memory(tmp_path).state != "fail"
    (tmp_path / f"closeranks-{os.getuid()}").chmod(0o777)
    found = doctor._shared_memory(tmp_path)
    assert found.state == "fail"
    assert "mode 0777" in found.found
    assert "remove it" in found.remedy


def test_fewer_cores_than_the_machine_has_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(doctor, "cgroup_quota", lambda: 1.5)
    found = next(iter(doctor.look_at_machine()))
    assert found.state == "warn"
    assert "1 of 64 usable" in found.found
    assert "cgroup quota 1.5" in found.found
