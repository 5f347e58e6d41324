"""Which tests one process runs, where several processes run tests.

pytest-xdist has a marker for this, but its 3.8 does not hear of it under
pytest 9.2: tests of one group ran on both workers.  So groups are told by the
file of a test, which the scheduler knows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
#: Files and folders that start ranks; the tests of a file may share launches.
LAUNCHING = (
    "cluster", "exceptions", "faults", "gpu", "checkpoint/memory/test_slot_locks.py",
    "jobs/bench/test_run.py", "jobs/test_care.py", "jobs/test_command_line.py", "jobs/test_tune.py",
)  # fmt: skip
#: And one whose tests count together what they have met.
WHOLE = (*LAUNCHING, "checkpoint/test_histories.py")
#: What the files have in their text whose tests share one thing, and a name for it.
SHARED = {"@asks(": "jobs of many questions", "slurm: Slurm": "one SLURM"}


@cache
def group_of(path: str) -> str | None:
    """Name the group of the tests of a file, None where each is alone.

    Parameters
    ----------
    path : str
        From the root of the repository.
    """
    if not path.removeprefix("tests/").startswith(WHOLE):
        return None
    text = (ROOT / path).read_text()
    return next((name for mark, name in SHARED.items() if mark in text), path)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of a group go to one worker, all others wherever there is time."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0]) or nodeid
