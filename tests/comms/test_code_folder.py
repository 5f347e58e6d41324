"""Compiled code finds a place where neither the package nor a home can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

_PROGRAM = """
import numba.core.caching as caching
for name in dir(caching):
    if name.endswith(("InTreeCacheLocator", "UserWideCacheLocator", "FsAgnostic")):
        def refuse(self):
            raise OSError("read-only")
        getattr(caching, name).ensure_cache_path = refuse
from closeranks.comms.code_folder import settle_code_folder
settle_code_folder()
from closeranks.comms import atomics
import numba

@numba.njit(cache=True)
def twice(x):
    return 2 * x

assert twice(3) == 6
print(numba.config.CACHE_DIR)
"""


def test_a_read_only_package_keeps_its_code_elsewhere(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, program], env=environment, text=True, capture_output=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path / f"closeranks-{os.getuid()}"
    assert list(folder.rglob("*twice*.nbi"))
    assert folder.parent.stat().st_mode & 0o077 == 0
