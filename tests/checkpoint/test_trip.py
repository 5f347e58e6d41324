"""How many Python calls a warm save and a restore make, and what they read twice: nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
LINE = re.compile(
    r"^(\w+): (\d+) calls in (\d+) files, .*; (\d+) headers decoded, (\d+) summed, "
    r"(\d+) slots' data summed$",
    re.MULTILINE,
)
#: Slots of two ranks that keep two saves.
SLOTS = 4


@pytest.mark.slow
def test_a_save_is_short_and_a_restore_reads_each_header_once(mpirun: Run) -> None:
    done = mpirun(2, "docs/internals/checkpoint_trip.py", timeout_s=100)
    assert done.returncode == 0, done.stdout
    found = {name: tuple(map(int, numbers)) for name, *numbers in LINE.findall(done.stdout)}
    assert set(found) == {"save", "restore", "restart"}, done.stdout
    calls, files, *looked_at = found["save"]
    assert calls <= 53, done.stdout
    assert files <= 9, done.stdout
    assert looked_at == [0, 0, 0], done.stdout
    for name in ("restore", "restart"):
        calls, files, decoded, header_sums, data_sums = found[name]
        assert calls <= 1200, done.stdout
        assert decoded == header_sums == SLOTS, done.stdout
        assert data_sums == 1, done.stdout  # the other slot is the other rank's to look at
