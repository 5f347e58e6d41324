"""How a communicator ends: also at the second try."""

from __future__ import annotations

import signal

import pytest
from mpi4py import MPI

import closeranks as cr
from closeranks.collectives import family


class _Alarm(Exception):
    pass


def _ring(*_: object) -> None:
    raise _Alarm


def test_who_was_late_is_met_at_the_second_try(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        return
    monkeypatch.setattr(family, "CLOSING_S", 0.3)
    world = cr.init(comm, timeout_s=0.3)
    for _ in range(2 if comm.rank else 0):
        with pytest.raises(cr.PeerLate, match="close"):
            world.close()
    comm.Barrier()
    monkeypatch.setattr(family, "CLOSING_S", 5.0)
    world.close()
    assert world == MPI.COMM_NULL


def test_an_interrupted_end_is_taken_up_again(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    world = cr.init(comm)
    with world.Dup() as child:
        if comm.rank:
            before = signal.signal(signal.SIGALRM, _ring)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(_Alarm):
                child.close()
            signal.signal(signal.SIGALRM, before)
        comm.Barrier()
    assert child == MPI.COMM_NULL
    world.close()
