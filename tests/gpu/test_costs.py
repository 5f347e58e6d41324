"""What arrays on a device cost is measured where there is one, and said where there is none."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.conftest import ROOT
from tests.gpu.test_cupy import REASON

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = str(ROOT / "docs" / "limits" / "devices.py")


@pytest.mark.parametrize("ranks", [1, 2])
def test_costs(mpirun: Run, ranks: int) -> None:
    done = mpirun(ranks, PROGRAM, "65536", timeout_s=110)
    assert done.returncode == 0, done.stdout
    said = "not measured: this needs CuPy, and a GPU that it sees" if REASON else "all-reduce, auto"
    assert done.stdout.count(said) == 1
