"""``closeranks tune`` in a lab: it finds the lab's wires, and a job starts with its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.child import closeranks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

JOB = """\
import sys
import warnings
import closeranks as cr
warnings.simplefilter("error")
with cr.init(tuning=sys.argv[1]) as comm:
    if comm.rank == 0:
        found = comm.explain("allreduce", 1 << 20)
        print(comm.hierarchy.links["node"].source, found.calls_to_settle)
"""


def test_it_finds_the_labs_wires(tmp_path: Path) -> None:
    lab = ("lab", "--nodes", "2", "--per-node", "2", "--rate", "200mbit", "--")
    table, rows, job = (tmp_path / name for name in ("table.json", "rows.json", "job.py"))
    job.write_text(JOB)
    words = ("--output", str(table), "--json", str(rows), "--budget", "0.1", "--algorithms")
    trials = ("--operations", "allreduce", "--sizes", "1M")
    done = closeranks(*lab, "closeranks", "tune", *words, *trials, timeout_s=120, cwd=tmp_path)
    if "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    levels = {level["name"]: level for level in json.loads(table.read_text())["levels"]}
    assert levels["node"]["together"] == levels["rank"]["together"] == 2
    # 0.957 of the wire is payload; what the cards send at once makes it look faster.
    assert levels["node"]["link"]["bytes_per_s"] == pytest.approx(0.957 * 25e6, rel=0.3)
    assert levels["rank"]["link"]["bytes_per_s"] > 4 * levels["node"]["link"]["bytes_per_s"]
    kinds = {row["kind"] for row in json.loads(rows.read_text())}
    assert kinds == {"level", "stage", "segments", "winner"}
    for word in ("node", "segments", "fastest", str(table)):
        assert word in done.stdout
    done = closeranks(*lab, str(job), str(table), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tuned", "0"]
