"""A checkpoint brings the state of one layout to others, on another number of ranks."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path


def test_layouts_come_back_on_other_ranks(
    mpirun: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program = Path(__file__).with_name("checkpointed_layouts.py")
    done = mpirun(6, str(program), f"layouts-{secrets.token_hex(4)}", timeout_s=60)
    assert done.returncode == 0, done.stdout
    assert "5 layouts, 0 numbers wrong" in done.stdout
