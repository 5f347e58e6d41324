"""The program that the ranks run: sequences, until one is wrong or time is over."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mpi4py import MPI

from tests.fuzz.runner import Runner
from tests.fuzz.sequences import drawn
from tests.fuzz.watchdog import Watchdog

#: Seconds that a step may take.
LIMIT_S = 30.0


def main(folder: str) -> int:
    """Run what ``job.json`` in a folder says, and write what was found beside it."""
    began = time.monotonic()
    place = Path(folder)
    job: dict[str, Any] = json.loads((place / "job.json").read_text())
    world = MPI.COMM_WORLD.Dup()
    calls: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    number, done = job.get("first", 0), 0
    with (place / f"rank{world.rank}.txt").open("w") as trace:
        watchdog = Watchdog(place, world.rank, job.get("limit_s", LIMIT_S), trace)
        while True:
            given = job.get("sequences")
            left_s = job.get("seconds", 1e9) - (time.monotonic() - began)
            goes_on = done < len(given) if given is not None else left_s > 0
            if not world.bcast(goes_on, 0):
                break
            sequence = given[done] if given is not None else drawn(job["seed"], number, world.size)
            if world.rank == 0:
                (place / "at.json").write_text(json.dumps([number, done]))
            runner = Runner(world, sequence, trace, watchdog)
            runner.run()
            calls.update(runner.calls)
            refused.update(runner.refused)
            failures = world.allgather(runner.failure)
            done += 1
            if any(failures):
                if world.rank == 0:
                    (place / "failure.json").write_text(json.dumps(failures))
                break
            number += 1
        watchdog.stop()
        if world.rank == 0:
            said = {"sequences": done, "calls": calls, "refused": refused}
            (place / "done.json").write_text(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
