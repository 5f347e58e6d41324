"""Run mpi4py's own tests of buffer collectives on a closeranks communicator.

``python mpi4py_suite.py FOLDER MODE [TYPES]``: FOLDER is mpi4py's ``test``
folder.  MODE is "auto"; "planned", which leaves nothing to the library; a
number, which of each operation's algorithms to take; or "levels", hierarchical
algorithms with pairs of ranks for nodes.  TYPES are the type codes to test, all
if not given.  Started by tests/test_mpi4py_suite.py.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import unittest
from typing import Any

import numpy as np
from mpi4py import MPI

import closeranks
from closeranks.collectives.catalogue import ALGORITHMS

MODULES = ("test_cco_buf", "test_cco_vec", "test_cco_nb_buf", "test_cco_nb_vec")
LIMIT_S = 240.0


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


def run(folder: str, mode: str, types: str) -> bool:
    """Run the tests on all ranks; whether they passed on all of them."""
    sys.path.insert(0, folder)
    arrays = importlib.import_module("arrayimpl")
    arrays.ArrayBackends[:] = [kind for kind in arrays.ArrayBackends if kind.backend != "numba"]
    for kind in arrays.ArrayBackends:
        kind.TypeMap = {code: t for code, t in kind.TypeMap.items() if not types or code in types}
    plain = MPI.COMM_WORLD.Dup()
    with closeranks.init(**options(mode)) as world:
        MPI.COMM_WORLD = world  # type: ignore[misc]
        suite = unittest.TestSuite(
            unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name))
            for name in MODULES
        )
        stream = sys.stderr if plain.rank == 0 else open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        result = unittest.TextTestRunner(stream, verbosity=1).run(suite)
        if plain.rank and not result.wasSuccessful():
            for test, text in (*result.failures, *result.errors):
                sys.stderr.write(f"rank {plain.rank}, {test}: {text}\n")
        planned = sum(
            count
            for names in world.statistics().algorithms.values()
            for name, count in names.items()
            if name != "native"
        )
        ran = plain.allgather((result.wasSuccessful(), result.testsRun, planned))
    if plain.rank == 0:
        sys.stderr.write(f"tests {ran[0][1]}, planned calls {ran[0][2]}\n")
    return all(well for well, _, _ in ran)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    passed = run(sys.argv[1], sys.argv[2], "".join(sys.argv[3:]))
    faulthandler.cancel_dump_traceback_later()
    sys.exit(0 if passed else 1)
