"""Handles of processes, also for Pythons that have no name for them."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from closeranks.comms import mates


@pytest.mark.parametrize("named", [True, False])
def test_a_handle_tells_that_a_process_has_ended(
    monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    if not named:
        monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    handle = mates._opened(process.pid)
    try:
        assert not select.select([handle], [], [], 0.2)[0]
        process.communicate(b"\n")
        assert select.select([handle], [], [], 5)[0]
    finally:
        os.close(handle)
    with pytest.raises(ProcessLookupError):
        mates._opened(process.pid)
