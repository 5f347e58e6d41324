"""Ranks fork beside a `CodedAllreduce`; the children leave by ways of their own.

    closeranks run -n 3 -- tests/faults/coded_forks.py

The ranks go on with their rounds, and nothing that a child does is of the job.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import closeranks as cr
from closeranks.collectives.coded import CodedAllreduce, Recorder, Uncoded

WATCHDOG_S = 60


class Ended(Exception):
    """A child leaves by it."""


def fork(ended: list[int]) -> bool:
    """Fork, and wait for the child; tell whether this is it."""
    child = os.fork()
    if child:
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return not child


def main() -> None:
    """Fork inside of a round, and between two."""
    faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
    ended: list[int] = []
    with tempfile.TemporaryDirectory() as folder, cr.init() as comm:
        parent = os.getpid()

        def ones(_number: int) -> np.ndarray:
            return np.ones(3)

        def leaves(number: int) -> np.ndarray:
            if comm.rank == 1 and number == 4 and fork(ended):
                sys.exit(0)
            return ones(number)

        def raises(number: int) -> np.ndarray:
            if comm.rank == 1 and number == 4 and fork(ended):
                raise Ended
            return ones(number)

        def returns(number: int) -> np.ndarray:
            """The child goes on as if it were a rank."""
            if comm.rank == 1 and number == 4:
                fork(ended)
            return ones(number)

        path = Path(folder, f"{comm.bcast(parent, 0)}.trace")
        with (
            contextlib.suppress(Ended, cr.UsageError),
            Recorder(comm, path) as recorder,
            CodedAllreduce(comm, Uncoded(3), record=recorder) as coded,
        ):
            for part in ones, leaves, raises, returns, ones:
                assert (coded.step(part, 9) == 9).all()
                if os.getpid() != parent:
                    os._exit(9)  # it has taken part in a round
            if comm.rank == 2 and fork(ended):
                sys.exit(0)
            assert (coded.step(ones, 9) == 9).all()
            if comm.rank == 2 and fork(ended):
                coded.close()
                os._exit(5)
            assert (coded.step(ones, 9) == 9).all()
        if os.getpid() == parent:
            sys.stdout.write(f"rank {comm.rank}: {coded.round} {recorder.rounds} {ended}\n")
        else:
            os._exit(3)


main()
