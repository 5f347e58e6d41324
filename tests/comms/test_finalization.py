"""A process whose last C code never ends, and one whose last Python code takes long."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import atexit, ctypes, signal, sys, time
from closeranks.comms import finalization
finalization.limit(0.5)
if "slow" in sys.argv:
    atexit.register(lambda: print(time.sleep(1), flush=True))
if "alarm" in sys.argv:
    signal.signal(signal.SIGALRM, lambda *_: None)
if "stuck" in sys.argv:
    ctypes.pythonapi.Py_AtExit(ctypes.CDLL(None).pause)
"""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [("", 0, ""), ("slow", 0, "None\n"), ("slow stuck", -signal.SIGALRM, "None\n"),
     ("alarm stuck", -signal.SIGALRM, "")],
)  # fmt: skip
def test_only_what_comes_after_python_is_limited(words: str, status: int, said: str) -> None:
    begun = time.monotonic()
    command = [sys.executable, "-c", PROGRAM, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, said, "")
    assert ("stuck" in words) <= (time.monotonic() - begun > 0.5)
