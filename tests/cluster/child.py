"""The command line as a child process with a deadline, and what its ranks say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

RANK = """\
import os, socket, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
words = [comm.rank, comm.size, socket.gethostname(), node.size]
words += [os.environ.get(name, "-") for name in sys.argv[1:]]
sys.stdout.write(" ".join(map(str, words)) + "\\n")
sys.stdout.flush()
"""

SLEEPER = """\
import sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
time.sleep(float(sys.argv[1]))
"""


def start(
    *words: str, cwd: Path | None = None, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start the command line as a child in a session of its own."""
    return subprocess.Popen(
        [*(prefix or [sys.executable]), "-m", "closeranks", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=cwd,
    )


def end(child: subprocess.Popen[str], timeout_s: float = 40) -> subprocess.CompletedProcess[str]:
    """Wait for a child; past its deadline, end its session and fail."""
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, errors = child.communicate()
        pytest.fail(f"{child.args!r}: no end within {timeout_s} s\n{output}\n{errors}")
    return subprocess.CompletedProcess(child.args, child.returncode, output, errors)


def closeranks(
    *words: str, timeout_s: float = 40, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return end(start(*words, cwd=cwd), timeout_s)


def await_line(child: subprocess.Popen[str], line: str) -> None:
    """Wait until a child has written a line."""
    assert child.stdout is not None
    for found in child.stdout:
        if found.strip() == line:
            return
    pytest.fail(f"{child.args!r} ended without {line!r}: {child.communicate()}")


def await_end(processes: Sequence[psutil.Process], timeout_s: float = 5) -> list[psutil.Process]:
    """Wait for processes to end; those that still live are returned."""
    stop = time.monotonic() + timeout_s
    left = list(processes)
    while left and time.monotonic() < stop:
        time.sleep(0.02)
        left = [process for process in left if process.is_running()]
    return left


def said(output: str) -> list[list[str]]:
    """Sort what the ranks said by rank."""
    return sorted((line.split() for line in output.splitlines()), key=lambda words: int(words[0]))
