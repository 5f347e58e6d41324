"""How old a process is, and the end of one that waits for ever, whatever its streams are."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from closeranks.comms.exit.hard_deadline import process_age_s

PROGRAM = """
import io, sys, time
from closeranks.comms.exit.hard_deadline import HardDeadline
{before}
with HardDeadline(0.2, "it took too long"):
    time.sleep(20)
"""


@pytest.mark.parametrize("before", ["", "sys.stderr = io.StringIO()", "sys.stderr = None"])
def test_it_says_why_and_ends(before: str) -> None:
    program = PROGRAM.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=15, check=False
    )
    assert done.returncode == 75
    assert done.stderr.startswith("it took too long\n")
    assert "most recent call first" in done.stderr


def test_nobody_reads_what_it_says() -> None:
    program = PROGRAM.format(before="import os; os.close(2)")
    done = subprocess.run([sys.executable, "-c", program], timeout=15, check=False)
    assert done.returncode == 75


def test_who_comes_in_time_goes_on() -> None:
    program = PROGRAM.format(before="time.sleep = print")
    done = subprocess.run([sys.executable, "-c", program], timeout=15, check=False)
    assert done.returncode == 0


def test_this_process_grows_older() -> None:
    began = time.monotonic()
    before_s = process_age_s()
    time.sleep(0.2)
    assert 0.2 - 0.02 <= process_age_s() - before_s <= time.monotonic() - began + 0.02


def test_a_process_may_be_called_anything() -> None:
    says = """
import ctypes
from closeranks.comms.exit.hard_deadline import process_age_s
ctypes.CDLL(None).prctl(15, bytes([255]) + b") 1 (")  # PR_SET_NAME
print(process_age_s())
"""
    began = time.monotonic()
    words = [sys.executable, "-c", says]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    assert 0 < float(said.stdout) <= time.monotonic() - began + 0.02


def test_a_new_process_is_as_old_as_its_first_program() -> None:
    says = "from closeranks.comms.exit.hard_deadline import process_age_s; print(process_age_s())"
    began = time.monotonic()
    words = ["sh", "-c", f"sleep 0.3; exec {sys.executable} -c '{says}'"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    assert 0.3 <= float(said.stdout) <= time.monotonic() - began + 0.02
