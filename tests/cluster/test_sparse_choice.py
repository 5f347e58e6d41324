"""What "auto" takes for sparse sums beside what each algorithm takes, in alternating blocks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster.child import closeranks

pytestmark = [pytest.mark.exhaustive, pytest.mark.serial, pytest.mark.timeout(400)]

PROGRAM = """\
import faulthandler, sys, time
import numpy as np
from mpi4py import MPI
import closeranks as cr
from closeranks.collectives.sparse import SparseVector

faulthandler.dump_traceback_later(380, exit=True)


def seconds(algorithm, calls):
    comm.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        comm.Allreduce_sparse(vector, algorithm=algorithm)
    return comm.allreduce((time.perf_counter() - began) / calls, op=MPI.MAX)


with cr.init() as comm:
    draw = np.random.default_rng(comm.rank)
    for length in (1 << int(word) for word in sys.argv[1:]):
        for share in (1e-4, 1e-2, 0.1, 0.5):
            count = max(1, int(length * share))
            some = np.sort(draw.choice(length, count, replace=False))
            vector = SparseVector(some, np.ones(count, np.float32), length)
            took = {"auto": [], "split": []}
            if count < 1 << 20:  # else doubling is out of the question
                took["doubling"] = []
            if share > 1e-3 or length < 1 << 22:  # and here whole vectors
                took["dense"] = []
            for algorithm in took:  # kernels are compiled, and their speed becomes known
                once_s = [seconds(algorithm, 1) for _ in range(3)][-1]
            calls = int(np.clip(0.02 / once_s, 1, 200))
            for _ in range(int(np.clip(1.5 / (once_s * calls * len(took)), 3, 25))):
                for algorithm, found in took.items():
                    found.append(seconds(algorithm, calls))
            middle = {algorithm: float(np.median(found)) for algorithm, found in took.items()}
            ratio = middle["auto"] / min(middle[one] for one in middle if one != "auto")
            if comm.rank == 0:
                print(f"choice {length} {share:g} {ratio:.2f} {middle}", flush=True)
"""
#: Launcher, lengths (exponents of 2), and the bar; emulated nodes share cores unawares.
PLACES = {
    "one node": (("run", "-n", "4"), ("16", "20", "24"), 1.3),
    "four nodes": (
        ("lab", "--nodes", "4", "--per-node", "2", "--rate", "200mbit", "--no-check"),
        ("16", "20", "22"),
        1.5,
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_auto_is_near_the_best(tmp_path: Path, place: str) -> None:
    launch, lengths, bar = PLACES[place]
    program = tmp_path / "choice.py"
    program.write_text(PROGRAM)
    done = closeranks(*launch, "--", sys.executable, str(program), *lengths, timeout_s=390)
    if "emulated cluster" in done.stderr or "not available here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    words = done.stdout + done.stderr
    assert done.returncode == 0, words
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("choice ")]
    assert len(rows) == 12, words
    assert all(float(row[3]) <= bar for row in rows), words
