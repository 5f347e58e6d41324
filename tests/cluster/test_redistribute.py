"""What crosses the wire of a lab in a conversion is what was planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.child import closeranks, said

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]

PROGRAM = """\
import sys
import numpy as np
import closeranks as cr
from closeranks.jobs.bench.measuring.network import node_sent_bytes
from closeranks.partitioning import Broadcast, Layout, Mesh, Partial, Split
from closeranks.partitioning import conversion, redistribute

with cr.init() as comm:
    topology = comm.hierarchy
    mesh = Mesh({"x": comm.size}, order=[0, 2, 1, 3])
    rows, all_of, columns, terms = (
        Layout((2048, 1024), [how], mesh=mesh)
        for how in (Split(0), Broadcast(), Split(1), Partial())
    )
    for n, (source, target) in enumerate([(rows, all_of), (rows, columns), (terms, columns)]):
        whole = np.arange(2048.0 * 1024).reshape(2048, 1024)
        mine = whole[source.box(comm.rank)].copy()
        redistribute(comm, mine, source, target)  # connections and choices are made
        comm.Barrier()
        before = sum(node_sent_bytes().values())
        comm.Barrier()
        made = redistribute(comm, mine, source, target)
        comm.Barrier()
        sent = sum(node_sent_bytes().values()) - before
        comm.Barrier()
        right = whole[target.box(comm.rank)] * (comm.size if source is terms else 1)
        assert (made == right).all()
        planned = conversion(source, target, topology=topology).group_bytes_per_level["node"]
        sys.stdout.write(f"{comm.rank} {n} {sent} {planned}\\n")
        sys.stdout.flush()
"""


def test_nics_count_what_was_planned(tmp_path: Path) -> None:
    (tmp_path / "turned.py").write_text(PROGRAM)
    lab = ("lab", "--nodes", "2", "--per-node", "2", "--no-check", "--rate", "1gbit")
    done = closeranks(*lab, "--", "turned.py", cwd=tmp_path)
    if "emulated cluster" in done.stderr or "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    lines = said(done.stdout)
    assert len(lines) == 12
    for _, case, sent, planned in lines:
        assert int(planned) == (4 << 20 if case == "1" else 8 << 20)
        payload = int(sent) * 1448 / 1514  # of frames on the wire
        assert abs(payload / int(planned) - 1) < 0.05, done.stdout
