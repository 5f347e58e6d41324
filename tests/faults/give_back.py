"""A program that loses ranks and their arrays of `comm.empty`: nothing of them stays.

    closeranks run --faults -n 5 -- tests/faults/give_back.py KILLS [recruits]

KILLS are ``SEAT@STEP:POINT``; the points are "holding" arrays, and making one:
"promised" a row, "sharing" a file, "mapped" it.  Every survivor says what it has
mapped at first and in the end, when no more ranks make as many arrays.  With
``run --spares`` the dead are replaced, with ``recruits`` by new processes.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import closeranks as cr
from closeranks.collectives.shm import shared_arrays

STEPS = 8
COUNT = 1 << 17
WATCHDOG_S = 50
#: What a dying rank calls last, by point.
LAST = {"promised": "_mapped", "sharing": "share", "mapped": "_raise_first"}
MAPPING = re.compile(r"^\S+-\S+ .*/closeranks-\d+/.*\n(?:.*\n)*?Rss: *(\d+) kB", re.MULTILINE)


def die(*_: Any, **__: Any) -> NoReturn:
    """End this rank, whoever calls."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives this")


def held(comm: cr.Communicator) -> tuple[int, int]:
    """Count the files that are mapped and their KiB, when all have dropped what they can."""
    gc.collect()
    comm.Barrier()
    comm.empty(1)  # unmaps what nobody has an array in
    found = MAPPING.findall(Path("/proc/self/smaps").read_text())
    comm.Barrier()
    return len(found), sum(map(int, found))


def step(comm: cr.Communicator, point: str) -> None:
    """Make arrays, sum in them, drop them; or die at a point."""
    if point in LAST and point != "mapped":
        setattr(shared_arrays, LAST[point], die)
    x = comm.empty(COUNT, np.int64)
    if point == "mapped":
        checked, found = shared_arrays._checked, shared_arrays._raise_first

        def check(*given: Any) -> Any:
            setattr(shared_arrays, LAST[point], found)
            sizes = checked(*given)
            setattr(shared_arrays, LAST[point], die)
            return sizes

        setattr(shared_arrays, "_checked", check)  # noqa: B010 - which mypy would not have
    y = comm.empty(COUNT, np.int64)
    if point == "holding":
        die()
    x[:] = 1 << comm.seat
    comm.Allreduce(x, y, algorithm="shared")
    members = sum(1 << seat for seat in comm.alive)
    assert (y == members).all(), f"{y[0]:b} for {members:b}"


def main() -> None:
    """Step, die if it is this rank's turn, and say what stayed."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    kills = {tuple(map(int, who.split("@"))): point for who, _, point in
             (word.partition(":") for word in sys.argv[1].split(","))}  # fmt: skip
    recruits = sys.argv[2:] == ["recruits"]
    replaces = recruits or "CLOSERANKS_SPARES" in os.environ
    comm = cr.init(on_failure="replace" if replaces else "shrink", recruits=recruits)
    before, number = (0, 0), -1 if comm.joined else 0
    while number < STEPS:
        for attempt in comm.attempts():
            with attempt:
                number = max(comm.allgather(number))
                step(comm, "" if comm.joined else kills.get((comm.seat, number), ""))
        if number == 0:
            before = held(comm)
        number += 1
    after = held(comm)
    rows, promised = len(shared_arrays._MAPPED), len(shared_arrays._PROMISED)
    who = f"{'newcomer' if comm.joined else 'survivor'} {comm.seat}"
    print(  # noqa: T201 - what the test reads
        f"{who}: epoch {comm.epoch}, files {before[0]} {after[0]},"
        f" KiB {before[1]} {after[1]}, rows {rows}, promised {promised}",
        flush=True,
    )
    comm.close()


main()
