"""Which lab is meant, and what it answers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from closeranks.errors import UsageError
from closeranks.jobs.lab import control
from closeranks.jobs.lab.node import Node


def test_the_only_lab_is_meant() -> None:
    assert control.choose_lab([41], None) == 41
    assert control.choose_lab([41, 52], 52) == 52


@pytest.mark.parametrize(
    ("labs", "asked", "problem"),
    [([], None, "no lab of yours"), ([1, 2], None, "2 labs run here: 1, 2"), ([1], 9, "no lab 9")],
)
def test_an_unclear_choice_is_refused(labs: list[int], asked: int | None, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        control.choose_lab(labs, asked)


def test_labs_are_found_beside_processes_that_may_be_called_anything() -> None:
    program = """
import ctypes
ctypes.CDLL(None).prctl(15, bytes([255]))  # PR_SET_NAME
print("called", flush=True)
input()
"""
    words, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "called\n"
        assert os.getpid() not in control.running_labs()
        other.communicate("\n")


@pytest.mark.parametrize("request_", ["kill 2", "kill x", "kill -1", "stop"])
def test_requests_for_other_nodes_are_refused(request_: str) -> None:
    nodes = [Node(0, "node0", 1), Node(1, "node1", 1)]
    assert "has nodes 0 to 1" in control.Control(nodes).answer(request_)
