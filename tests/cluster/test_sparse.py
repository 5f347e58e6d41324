"""Sparse sums over four emulated nodes: the bytes on the wire, and the time.

A quarter of the vector of the full measurement: 4 million entries.  Times have a quarter of
slack, because eight ranks share the cores.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.child import closeranks

pytestmark = [pytest.mark.cluster, pytest.mark.serial, pytest.mark.timeout(120)]

PROGRAM = """\
import faulthandler, time
import numpy as np
from mpi4py import MPI
import closeranks as cr
from closeranks.collectives.sparse import SparseVector, topk_allreduce
from closeranks.jobs.bench.measuring.network import node_sent_bytes, PAYLOAD, wire

faulthandler.dump_traceback_later(90, exit=True)
N = 1 << 22


def measured(call, calls=5):
    call()
    sent, seconds = [], []
    for _ in range(calls):
        comm.Barrier()
        before = sum(node_sent_bytes().values())
        comm.Barrier()
        began = time.perf_counter()
        call()
        seconds.append(comm.allreduce(time.perf_counter() - began, op=MPI.MAX))
        comm.Barrier()
        sent.append(sum(node_sent_bytes().values()) - before)
        comm.Barrier()
    return float(np.median(seconds)), max(comm.allgather(float(np.median(sent))))


with cr.init() as comm:
    draw = np.random.default_rng(comm.rank)
    link = wire()
    whole_s = 2 * (link.nodes - 1) / link.nodes * 4 * N / (PAYLOAD * link.bytes_per_s)
    for share in (0.01, 0.001):
        some = np.sort(draw.choice(N, int(share * N), replace=False))
        vector = SparseVector(some, np.ones(len(some), np.float32), N)
        seconds, sent = measured(lambda: comm.Allreduce_sparse(vector))
        if comm.rank == 0:
            print(f"share {share}: {whole_s / seconds:.1f} times, {sent:.0f} bytes", flush=True)
    for span in (N, N // 8):
        x = np.zeros(N, np.float32)
        x[:span] = draw.standard_normal(span)
        seconds, sent = measured(lambda: topk_allreduce(comm, x, N // 100), 3)
        if comm.rank == 0:
            print(f"largest {span}: {whole_s / seconds:.1f} times, {sent:.0f} bytes", flush=True)
"""


def test_each_node_says_a_thing_once(tmp_path: Path) -> None:
    program = tmp_path / "sparse.py"
    program.write_text(PROGRAM)
    lab = ("lab", "--nodes", "4", "--per-node", "2", "--rate", "200mbit")
    done = closeranks(*lab, "--", str(program))
    if "emulated cluster" in done.stderr or "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    words = done.stdout + done.stderr
    assert done.returncode == 0, words
    found = dict(line.split(": ", 1) for line in words.splitlines() if " times, " in line)
    assert len(found) == 4, words
    times = {name: float(line.split()[0]) for name, line in found.items()}
    sent = {name: float(line.split()[2]) for name, line in found.items()}
    assert sent["share 0.01"] <= 6.8e6 / 4, words
    assert sent["share 0.001"] <= 0.8e6 / 4 + 65536, words
    assert times["share 0.01"] >= 0.75 * 8, words
    for name in (f"largest {1 << 22}", f"largest {1 << 19}"):
        assert sent[name] <= 2.6e6 / 4 + 65536, words
