"""Plants defects in a copy of the package, and sees that a test of sparse calls fails.

``python -m tests.collectives.sparse.mutations``; nothing in the checkout changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.launch import ROOT
from tests.fuzz.mutations import Patch, planted

LOOPS = "collectives/pairs/pair_loops.py"
TOPK = "collectives/sparse/topk_reduction.py"
MOVES = "collectives/builders/row_moves.py"


class Mutation(NamedTuple):
    """A defect, and the tests of which one must fail: on ``ranks``, or in one process for 0."""

    patches: tuple[Patch, ...]
    tests: tuple[str, ...]
    ranks: int = 0


_PLANS = ("tests/collectives/pairs", "tests/collectives/sparse/test_sparse_plans.py")
_ROWS = ("tests/collectives/sparse/test_row_exchange.py",)
_LARGEST = ("tests/mpi/test_topk.py",)
MUTATIONS: dict[str, Mutation] = {
    "the last index dropped": Mutation(
        (Patch(LOOPS, "while j < n_right:\n", "while j < n_right - 1:\n"),), _PLANS
    ),
    "indices cut to 24 bits": Mutation(
        (Patch(LOOPS, "        out[i] = last\n", "        out[i] = last & 0xFFFFFF\n"),), _PLANS
    ),
    "ties the wrong way": Mutation(
        (Patch(TOPK, "inverse = _LAST - sums.indices[tied]", "inverse = sums.indices[tied]"),),
        _LARGEST,
        3,
    ),
    "ties of a rank the wrong way": Mutation(
        (Patch(LOOPS, "for i in range(n):\n        key = keys[i] & mask\n        if key > least",
               "for i in range(n - 1, -1, -1):\n        key = keys[i] & mask\n"
               "        if key > least"),),
        _LARGEST,
        3,
    ),
    "the residual not zeroed": Mutation((Patch(TOPK, "kept[taken] = 0", "pass"),), _LARGEST, 3),
    # A relay's node gets a row once for each rank that wants it, straight.
    "a chunk sent twice": Mutation(
        (
            Patch(MOVES, "heard.relays if relayed else np.full_like(heard.relays, rank)",
                  "np.full_like(heard.relays, rank)"),
            Patch(MOVES, "announcement.relayed if relayed else announcement.direct",
                  "announcement.direct"),
            Patch(MOVES, "_onward(heard.words, tiers, rank) if relayed else {}", "{}"),
        ),
        _ROWS,
    ),
    "a token copied to a wrong rank": Mutation(
        (Patch(MOVES, "enumerate(tiers.members[tiers.node[rank]])",
               "enumerate(tiers.members[tiers.node[rank]][::-1])"),),
        _ROWS,
    ),
}  # fmt: skip


def failing(mutation: Mutation) -> str:
    """Run the tests with a defect; return the first that fails, or ""."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        package = planted(mutation.patches, Path(folder))
        shutil.copytree(ROOT / "tests", package / "tests",
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        shutil.copy(ROOT / "pyproject.toml", package)
        python = [sys.executable, "-m"]
        words = [
            *python,
            "pytest",
            "-qx",
            "--color=no",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            *mutation.tests,
        ]
        if mutation.ranks:
            words = [*python, "closeranks", "run", "-n", str(mutation.ranks), "--", *words,
                     "--with-mpi"]  # fmt: skip
        done = subprocess.run(
            words,
            cwd=package,
            env=os.environ | {"PYTHONPATH": str(package), "TESTS_SEED": "all"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    named = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode and not named:
        raise SystemExit(f"no test ran to its end:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return named[0].split()[1] if named else ""


def main(arguments: list[str] | None = None) -> int:
    """Look for each defect, and for none where there is none; 1 if that is not so."""
    parser = argparse.ArgumentParser(prog="python -m tests.collectives.sparse.mutations")
    parser.add_argument("--only", default="", help="those whose name has this text")
    only, wrong = parser.parse_args(arguments).only, 0
    sound = {one.tests: one._replace(patches=()) for one in MUTATIONS.values()}
    tried = {f"no defect, {tests[-1]}": one for tests, one in sound.items()} | MUTATIONS
    for name, mutation in tried.items():
        if only not in name:
            continue
        began, found = time.monotonic(), failing(mutation)
        wrong += bool(found) != bool(mutation.patches)
        said = found or ("NOT FOUND" if mutation.patches else "all pass")
        print(f"{name}: {time.monotonic() - began:.0f} s: {said}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
