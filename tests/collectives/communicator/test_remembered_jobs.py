"""Two jobs that close together, and the job after them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from closeranks.collectives.selection.remembered import look_at_folder
from closeranks.comms.jit.code_cache import cache_folder

Launch = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = """
import sys, time
from pathlib import Path
import closeranks as cr
from closeranks.collectives.selection.findings import TrialFinding, CallKind

operation, folder, jobs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
comm = cr.init()
(known,) = comm.membership.family.findings.values()
assert len(set(comm.allgather(known.digest()))) == 1
began = sorted(kind.operation for kind in known.by_kind)
for size in range(30):
    known.by_kind[CallKind(operation, size)] = TrialFinding("native", 1e-6)
if comm.rank == 0:
    print(f"began with {began}", flush=True)
    (folder / operation).touch()
    while len(list(folder.iterdir())) < jobs:  # each job has a core, and closes when all can
        time.sleep(1e-3)
comm.close()
"""


def test_two_jobs_that_close_together_leave_a_whole_file(
    launch: Launch, mpi_library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "ready"
    program.write_text(PROGRAM)
    folder.mkdir()
    monkeypatch.setenv("CLOSERANKS_CODE", str(cache_folder()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("CLOSERANKS_REMEMBER", "1")

    def run(operation: str, jobs: int) -> str:
        words = [
            "run",
            "-n",
            "2",
            "--",
            sys.executable,
            str(program),
            operation,
            str(folder),
            str(jobs),
        ]
        done = launch([sys.executable, "-m", "closeranks", *words])
        assert done.returncode == 0, done.stdout
        return done.stdout

    with ThreadPoolExecutor() as both:
        said = list(both.map(run, ("gather", "scatter"), (2, 2)))
    assert all("began with []" in one for one in said)
    assert look_at_folder()[1:] == (1, {}, None)
    (path,) = (tmp_path / "caches" / "closeranks").iterdir()
    rows = [row for rows in json.loads(path.read_text())["findings"].values() for row in rows]
    written = {row["operation"] for row in rows}
    assert written in ({"gather"}, {"scatter"}, {"gather", "scatter"})
    assert len(rows) == 30 * len(written)
    expected = sorted(row["operation"] for row in rows)
    assert f"began with {expected}" in run("bcast", 3)
