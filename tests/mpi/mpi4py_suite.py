"""Run mpi4py's own tests with closeranks communicators in the place of its own.

``python mpi4py_suite.py FOLDER PLACE MODE SEED TYPES [FILES...]``: FOLDER is
mpi4py's ``test`` folder.  PLACE is "ours"; "plain", which leaves mpi4py's
communicators where they are: what is skipped or fails then is not ours; or
"copies", a subclass of mpi4py's around duplicates, which runs those of `left_out`
alone that want the predefined objects themselves, and fail.  MODE is
"auto"; "planned", which leaves nothing to the library; a number, which of each
operation's algorithms to take; or "levels", hierarchical algorithms with pairs of
ranks for nodes.  SEED orders the files and the tests of each.  TYPES are the type
codes to test, "all" for every one.  FILES are names without ``.py``, else `FILES`.
Rank 0 prints a line of JSON for each file: name, passed, failed, and how many were
skipped for each reason.  Started by tests/test_mpi4py_suite.py.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import sys
import time
import unittest
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

import closeranks
from closeranks.collectives.builders.catalogue import ALGORITHMS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.mpi.mpi4py_files import FAILS, FILES, READS, WANTS, left_out

LIMIT_S = float(os.environ.get("SUITE_LIMIT_S", "240"))
#: No test is begun after so many, from the start of this process.
SECONDS = float(os.environ.get("SUITE_SECONDS", "inf"))
BEGAN = time.monotonic()
_Error: TypeAlias = (
    "tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]"
)


class Result(unittest.TestResult):
    """Notes how each test ends: "" if well, else why not."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, tuple[str, str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        if "SUITE_TRACE" in os.environ and MPI.COMM_WORLD.rank == 0:
            sys.stderr.write(f"{test.id()}\n")
        self.ends[test.id()] = "passed", ""

    def _fails(self, test: unittest.TestCase, error: _Error) -> None:
        text = self._exc_info_to_string(error, test)  # type: ignore[attr-defined]
        self.ends[test.id()] = "failed", text

    def addError(self, test: unittest.TestCase, err: _Error) -> None:
        self._fails(test, err)

    addFailure = addError

    def addSubTest(
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: _Error | None
    ) -> None:
        del subtest
        if err is not None:
            self._fails(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.ends[test.id()] = "skipped", reason


def options(mode: str) -> dict[str, Any]:
    """Options of `closeranks.init` for a mode."""
    if mode == "auto":
        return {}
    if mode == "planned":
        return {"deterministic": True}
    if mode == "levels":
        ranks = np.arange(MPI.COMM_WORLD.size)
        groups = np.stack([ranks // 4, ranks // 2, ranks]).astype(np.int32)
        topology = closeranks.Topology.from_groups(("site", "node", "rank"), groups)
        table = {operation: hierarchical(operation) for operation in ALGORITHMS}
        table = {operation: name for operation, name in table.items() if name}
        return {"deterministic": True, "topology": topology, "tuning": table}
    number = int(mode)
    table = {name: known[number % len(known)].name for name, known in ALGORITHMS.items()}
    return {"deterministic": True, "tuning": table}


def hierarchical(operation: str) -> str:
    """The first hierarchical algorithm of an operation, or nothing."""
    names = [known.name for known in ALGORITHMS[operation]]
    return next((name for name in names if "hierarchical" in name), "")


class Copy(MPI.Intracomm):
    """What stands for a predefined communicator, and is none of ours."""


def flat(suite: Iterable[unittest.TestCase | unittest.TestSuite]) -> list[unittest.TestCase]:
    """The tests of a suite, one by one."""
    found: list[unittest.TestCase] = []
    for one in suite:
        found += flat(one) if isinstance(one, unittest.TestSuite) else [one]
    return found


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Let modules be none that can be imported; what is imported meanwhile stays."""
    hidden: dict[str, Any] = {name: sys.modules.get(name) for name in names}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in hidden.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


#: Where our communicators stand, or none, and why tests are left out there.
LEFT = {"ours": (WANTS, READS, FAILS), "plain": (FAILS,), "copies": (READS, "")}


def run_file(name: str, place: str, order: random.Random, plain: MPI.Intracomm) -> dict[str, Any]:
    """Run a file's tests on all ranks; how they ended on any of them."""
    with without("cupy", "numba"):  # which want a GPU
        tests = flat(unittest.defaultTestLoader.loadTestsFromName(name))
    order.shuffle(tests)
    why = left_out(MPI.get_vendor()[0])
    left = [one for one in tests if why.get(one.id(), "") in LEFT[place]]
    tests = [one for one in tests if one not in left]
    result = Result()
    for one in tests:
        if plain.bcast(time.monotonic() - BEGAN > SECONDS):
            break  # another day begins with other ones
        vars(result)["_previousTestClass"] = None  # else what it sets up is taken for done
        unittest.TestSuite([one]).run(result)
    every = plain.allgather(result.ends)
    row: dict[str, Any] = {"file": name, "passed": 0, "failed": 0, "skipped": Counter()}
    if place != "copies":
        row["skipped"].update(why[one.id()] for one in left)
    for test in dict.fromkeys(known for ends in every for known in ends):
        ends = [one.get(test, ("missing", "")) for one in every]
        bad = [(rank, text) for rank, (how, text) in enumerate(ends) if how == "failed"]
        if bad:
            row["failed"] += 1
            if plain.rank == 0:
                sys.stderr.write(f"{test}, ranks {[rank for rank, _ in bad]}: {bad[0][1]}\n")
        elif any(how == "passed" for how, _ in ends):
            row["passed"] += 1
        else:
            row["skipped"][ends[0][1]] += 1
    return row


def run(folder: str, place: str, mode: str, seed: int, types: str, files: list[str]) -> bool:
    """Run the tests on all ranks; whether they passed on all of them."""
    sys.path.insert(0, folder)
    arrays = importlib.import_module("arrayimpl")
    arrays.ArrayBackends[:] = [kind for kind in arrays.ArrayBackends if kind.backend != "numba"]
    vars(arrays).update(numba=None, cupy=None)  # which want a GPU
    for kind in arrays.ArrayBackends:
        known = kind.TypeMap.items()
        kind.TypeMap = {code: t for code, t in known if types == "all" or code in types}
    plain, order = MPI.COMM_WORLD.Dup(), random.Random(seed)
    order.shuffle(files)
    planned, passed = 0, True
    with ExitStack() as stack:
        if place == "copies":
            MPI.COMM_WORLD, MPI.COMM_SELF = (  # type: ignore[misc]
                Copy(one.Dup()) for one in (MPI.COMM_WORLD, MPI.COMM_SELF)
            )
        if place == "ours":
            own = stack.enter_context(closeranks.init(MPI.COMM_SELF, **options("auto")))
            world = stack.enter_context(closeranks.init(**options(mode)))
            MPI.COMM_WORLD, MPI.COMM_SELF = world, own  # type: ignore[misc]
        for name in files:
            if plain.bcast(time.monotonic() - BEGAN > SECONDS):
                break
            row = run_file(name, place, order, plain)
            passed = passed and not row["failed"]
            if plain.rank == 0:
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
        if place == "ours":
            counts = world.statistics().algorithms.values()
            planned = sum(n for names in counts for name, n in names.items() if name != "native")
    if plain.rank == 0:
        sys.stdout.write(f"planned calls {planned}\n")
    return bool(plain.allreduce(passed, MPI.LAND))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    given = sys.argv[1:]
    ended = run(given[0], given[1], given[2], int(given[3]), given[4], given[5:] or list(FILES))
    faulthandler.cancel_dump_traceback_later()
    sys.exit(0 if ended else 1)
