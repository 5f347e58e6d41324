"""Plants defects in a copy of the package, and sees that the fuzzer finds each.

``python -m tests.fuzz.mutations --seeds 3 --seconds 60``; nothing in the checkout changes.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.__main__ import run
from tests.fuzz.launch import ROOT

ROOMS = ("closeranks", "comms", "collectives", "partitioning", "checkpoint", "jobs")


KEY = "collectives/arguments/collective_call.py"


class Patch(NamedTuple):
    """A change of one file: ``old`` stands there once."""

    file: str
    old: str
    new: str


MUTATIONS: dict[str, tuple[Patch, ...]] = {
    "a key without the type": (
        Patch(KEY, "demand.dtype if reduces else None", "None"),
        Patch(KEY, "arrays_of(demand), sent, received", "(None, None), None, None"),
    ),
    "a key without the root": (
        Patch(KEY, "        demand.root,\n        title", "        0,\n        title"),
    ),
    # In place or not changes where a bound plan reads: so what is bound is looked up without it.
    "a key without in-place": (
        Patch(KEY, "counts, demand.in_place, id", "counts, False, id"),
        Patch(
            "collectives/dispatch/plan_cache.py",
            "        bound.attach(memory.input, memory.output)\n",
            "        at = [None if one is None else one.memory.data.ctypes.data\n"
            "              for one in (demand.target, demand.source)]\n"
            "        known = self.__dict__.setdefault('known', {}).setdefault(id(bound), [0, 0])\n"
            "        if at[0] is None or at[0] != known[0] or at[1] not in (None, known[1]):\n"
            "            bound.attach(memory.input, memory.output)\n"
            "            known[:] = at\n",
        ),
    ),
    "a buffer freed early": (
        Patch(
            "collectives/dispatch/request.py",
            "            keep(inner, keeps)",
            "            pass",
        ),
    ),
    "a trial's barrier skipped": (
        Patch(
            "collectives/dispatch/race_calls.py",
            "if not timed:\n            self.meet()  # else",
            "if not timed and service.rank:\n            self.meet()  # else",
        ),
    ),
}  # fmt: skip


def planted(patches: tuple[Patch, ...], folder: Path) -> Path:
    """Copy the package into a folder, with a defect.

    Parameters
    ----------
    patches : tuple of Patch
        The defect.
    folder : Path
        Takes the copy.

    Returns
    -------
    Path
        Where closeranks is imported from.
    """
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, symlinks=True,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    for patch in patches:
        path = folder / patch.file
        text = path.read_text()
        if text.count(patch.old) != 1:
            raise SystemExit(f"{patch.file} has {text.count(patch.old)} of {patch.old!r}")
        path.write_text(text.replace(patch.old, patch.new))
    return folder


def main(arguments: list[str] | None = None) -> int:
    """Look for each defect with seeds drawn now; 1 if one is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutations")
    parser.add_argument("--seeds", type=int, default=3, help="how many for each")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", default="", help="those whose name has this text")
    options = parser.parse_args(arguments)
    missed = 0
    for name, patches in MUTATIONS.items():
        if options.only not in name:
            continue
        for seed in (secrets.token_hex(4) for _ in range(options.seeds)):
            with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
                package = planted(patches, Path(folder))
                began = time.monotonic()
                found = run(seed, options.seconds, options.ranks, package=package, most=1,
                            limit_s=15)  # fmt: skip
            missed += not found.failures
            how = found.failures[0][0] if found.failures else None
            said = "NOT FOUND" if how is None else f"{how.what}: {how.detail.splitlines()[0][:160]}"
            print(f"{name}, seed {seed}: {time.monotonic() - began:.0f} s, "
                  f"{found.sequences} sequences: {said}", flush=True)  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
