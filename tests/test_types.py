"""Types and style, as tests, so that one command says all."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    not (ROOT / "comms").is_dir(), reason="not a checkout: the rooms are not at the root"
)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "--no-cache"),
        ("ruff", "format", "--check", "--no-cache"),
        ("mypy",),
        ("mypy", "--explicit-package-bases", "tests"),
    ],
    ids=" ".join,
)
def test_nothing_to_complain_about(command: tuple[str, ...]) -> None:
    if find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed: pip install 'closeranks[test]'")
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
