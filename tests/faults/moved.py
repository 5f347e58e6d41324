"""A newcomer sits on another node than the dead, and a table holds for the old seats only.

    closeranks lab --faults --nodes 2 --per-node 2 --spares 1 -- moved.py

What the table says of algorithms is dropped by those who stay, and by who comes.
What trials have found is known to both.
"""

from __future__ import annotations

import faulthandler
import os
import signal

import numpy as np
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives.analysis.cost_model import Speed
from closeranks.collectives.selection.findings import CallKind, TrialFinding, TrialFindings
from closeranks.collectives.selection.pricing import NativeModel
from closeranks.collectives.selection.rules import Rules
from closeranks.collectives.selection.tuning_origin import here
from closeranks.collectives.selection.tuning_table import Tuned, shape
from closeranks.comms.discovery.discovery import discover

WATCHDOG_S = 30
SPARES = 1


def table() -> dict[str, object]:
    """Write a table for the members, as `closeranks tune` would."""
    world = MPI.COMM_WORLD
    members = discover(world).restrict(range(world.size - SPARES))
    winners = Rules({"allreduce": ((float(1 << 30), "ring"),)})
    native = NativeModel(1e-5, 1e-9)
    return Tuned(here(members), {}, Speed(0.0, 1e-10, 1e-10), native, winners).table()


def main() -> None:
    """Lose a rank of the first node, get one on the last, and add up."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    state = {"step": 0}
    with cr.init(on_failure="replace", tuning=table()) as comm:
        before = shape(comm.hierarchy)
        if not comm.joined:
            found = TrialFindings(
                {CallKind("bcast", 3): TrialFinding("native", 1e-6 * (1 + comm.seat))}
            )
            comm.membership.family.findings["a shape"] = found
        given, taken = np.full(100, 1 << comm.seat), np.empty(100, np.int64)
        while state["step"] < 8:
            for attempt in comm.attempts():
                with attempt:
                    state = comm.synchronize(state)
                    if comm.seat == 1 and comm.epoch == 0 and state["step"] == 3:
                        os.kill(os.getpid(), signal.SIGKILL)
                    comm.Allreduce(given, taken)
            assert (taken == sum(1 << seat for seat in comm.alive)).all()
            state["step"] += 1
        known = comm.allgather(comm.membership.family.findings["a shape"])
        assert (
            known
            == [TrialFindings({CallKind("bcast", 3): TrialFinding("native", 1e-6)})] * comm.size
        ), known
        if comm.rank == 0:
            assert shape(comm.hierarchy) != before, "the newcomer sits where the dead one sat"
            print(f"epoch {comm.epoch}, {comm.size} members", flush=True)  # noqa: T201


main()
