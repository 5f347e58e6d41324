"""Launches: what one leaves behind must not meet the next."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Launch

PROGRAM = "import os; print('files in', os.environ.get('PMIX_SERVER_TMPDIR', ''))"


def test_each_launch_has_files_of_its_own(launch: Launch, mpi_library: str) -> None:
    """Files under a process id alone stop a later launch that gets the same id."""
    if mpi_library != "Open MPI":
        pytest.skip("MPICH's launcher writes none")
    command = [sys.executable, "-m", "closeranks", "run", "-n", "1", "--"]
    folders = set()
    for _ in range(2):
        said = launch([*command, sys.executable, "-c", PROGRAM]).stdout
        folders |= set(re.findall(r"^files in (.*)$", said, re.MULTILINE))
    parents = {Path(folder).parent for folder in folders}
    assert len(parents) == 2
    assert all("closeranks-mpirun-" in str(one) for one in parents)
    assert not any(one.exists() for one in parents)
