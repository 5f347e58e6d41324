"""500 jobs that die and lose memory, as seeds draw them, get back what they had, or a clear word.

`HISTORIES=500:2000` runs others, 2000 from seed 500 on; `HISTORIES=517:1` one again.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.checkpoint.histories import History
from tests.checkpoint.mishaps import MISHAPS
from tests.checkpoint.points import set_up

FIRST, COUNT = map(int, os.environ.get("HISTORIES", "0:500").split(":"))
BATCH = 50
#: What has happened in those that were run; one process runs them all.
MET: Counter[str] = Counter()
#: Points at which somebody must have died in 500 of them, and what else must have happened.
POINTS = (
    "meeting", "everything", "gather", "least", "across", "move", "moved", "unlink", "write",
    "write-torn", "write-done", "put", "_compute", "attach", "reserve", "fsync",
    "pwrite", "replace",
)  # fmt: skip
HAPPENS = (
    *MISHAPS, "node", "a node left", "replaced", "shrunk", "no room to save", "no room to restore",
    "restored what nobody was told of", "restored by others", "on disk", "TooManyErasures",
)  # fmt: skip


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_what_was_saved_comes_back(first: int) -> None:
    for seed in range(first, min(first + BATCH, FIRST + COUNT)):
        with (
            tempfile.TemporaryDirectory(dir="/dev/shm", prefix="closeranks-test-") as root,
            pytest.MonkeyPatch.context() as patch,
        ):
            history = History(seed, Path(root))
            set_up(patch)
            try:
                history.run(patch)
            except BaseException as error:
                told = "\n".join(history.told)
                pytest.fail(f"HISTORIES={seed}:1 does it again\n{told}\n{error!r}")
        MET.update(history.met)


def test_all_has_happened() -> None:
    if MET["histories"] < 500:
        pytest.skip("all of test_what_was_saved_comes_back come before it")
    died = {what.removeprefix("died at ").split("-of-")[0] for what in MET if "died at" in what}
    assert sorted(set(POINTS) - died) == []
    assert not [what for what in HAPPENS if not MET[what]]
    assert MET["restored"] > 250
