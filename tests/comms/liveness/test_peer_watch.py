"""Handles of processes, also for Pythons that have no name for them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from closeranks.comms.liveness import peer_watch
from closeranks.comms.mpi import pmix


@pytest.mark.parametrize("named", [True, False])
def test_a_handle_tells_that_a_process_has_ended(
    monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    if not named:
        monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    handle = peer_watch._opened(process.pid)
    try:
        assert not select.select([handle], [], [], 0.2)[0]
        process.communicate(b"\n")
        assert select.select([handle], [], [], 5)[0]
    finally:
        os.close(handle)
    with pytest.raises(ProcessLookupError):
        peer_watch._opened(process.pid)


def test_the_first_of_a_node_tells_all_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bool]] = []
    monkeypatch.setenv("PMIX_NAMESPACE", "job")
    monkeypatch.setenv("PMIX_RANK", "4")

    def announce(dead: pmix.Name, *, widely: bool) -> bool:
        told.append((dead.rank, widely))
        return len(told) > 1

    monkeypatch.setattr(pmix, "announce", announce)
    own = peer_watch.Peers()
    own.report_dead([1])
    own.report_dead([1])  # PMIx did not take it
    own.report_dead([1, 6])
    assert told == [(1, True), (1, True), (6, True)]
    here = pmix.Name("job", 3)
    own._watched[7] = peer_watch._Peer(here, None, np.zeros(1, np.uint8))
    own.report_dead([2])
    assert len(told) == 3


def test_who_takes_a_seat_waits_for_who_begins_to_end() -> None:
    own = peer_watch.Peers()
    own.wait_for_ending(60)  # nobody does
    own._told.add(7)
    gone = threading.Timer(0.3, own._told.discard, [7])
    gone.start()
    before_s = time.monotonic()
    own.wait_for_ending(20)
    assert 0.2 < time.monotonic() - before_s < 9
    own._told.add(8)  # what the system cannot end
    own.wait_for_ending(0.4)


def test_who_is_watched_by_others_still_goes_on_to_speak_where_they_look() -> None:
    own, here, elsewhere = peer_watch.Peers(), pmix.Name("job", 3), pmix.Name("job", 5)
    own._watched = {7: peer_watch._Peer(here, None, np.zeros(1, np.uint8)),
                    8: peer_watch._Peer(elsewhere, None, np.zeros(1, np.uint8))}  # fmt: skip
    assert own._watches_others({here})
    assert not own._watches_others({here, elsewhere})
    own._told.add(8)
    assert not own._watches_others({here})
