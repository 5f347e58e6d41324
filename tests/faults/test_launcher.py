"""Open MPI's launcher outlives deaths of which it hears in the wrong order."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Launch

#: Lose six ranks, one after the other.
PROGRAM = """
import os, signal, time
import closeranks as cr
with cr.init(on_failure="shrink") as comm:
    time.sleep(1)  # until the warden is there
    while comm.size > 3:
        for attempt in comm.attempts():
            with attempt:
                if comm.rank == comm.size - 1 and attempt.number == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                comm.Barrier()
    print("seat", comm.seat, "ended")
"""


@pytest.mark.usefixtures("needs_open_mpi")
def test_it_looks_at_nothing_that_it_has_freed(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_PERTURB_", "165")  # what is freed is overwritten
    command = [sys.executable, "-m", "closeranks", "run", "--faults", "-n", "9", "--"]
    done = launch([*command, sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" ended") == 3, done.stdout
